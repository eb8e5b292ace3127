"""Timelines: what the script, the ranks and their devices did, and when."""
