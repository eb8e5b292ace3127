"""A rank from the inside: its start, its loop, and a routine for each kind of program."""
