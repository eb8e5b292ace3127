"""Timelines: what the script, the ranks and their devices did, and when.

Called by scripts (`synk.trace`) and `synknumba trace`; imports what `_world`, `_rank` and `_wire`
record. Read `trace.py` first.
"""
