"""Code of a rank: its start, its loop, and a routine for each kind of program."""
