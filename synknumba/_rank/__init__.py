"""Code of a rank: its start, its loop, and a routine for each kind of program.

Called by `_world`, which forks a process that runs `startup.py`; imports `_device`, `_comm` and
what lies below, nothing of the coordinator's. Read `loop.py` first, then `routine.py`,
`kernel_routine.py` and `replay.py`.
"""
