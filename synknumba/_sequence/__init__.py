"""Sequences: a body of calls and collectives that runs once, and that ranks repeat without it.

Called by scripts, by training and by `synknumba check`; imports `_call` and what lies below. Read
`sequence.py` first: the function that the decorator makes; then `body.py`, which runs the body, and
`recorder.py`, which takes its calls, with two ends: `install.py` sends them, and `dry_run.py`
reports on them. `schedule.py` decides how many rounds a call makes; `plan.py` has what the ranks
have, and makes them (`rounds.py` where there are several machines).
"""
