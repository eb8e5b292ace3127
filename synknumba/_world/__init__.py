"""The ranks from the outside: fork, processes, rounds, failures, output.

Called by `_variables`, `_call`, `_sequence` and scripts (`fork`); imports `_rank`, whose code runs
in the processes that it forks, and what lies below. Read `fork.py` first, then `engine.py` and
`rounds.py`, which makes a round and counts its time. While it waits, `Watchdog.check`
(`watchdog.py`) makes a death the failure of the round, which `processes.py` has seen and
`failure.py` words.
"""
