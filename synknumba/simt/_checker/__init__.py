"""Findings of `check`: races, indices out of bounds, reads of what nothing wrote.

A check begins in Python (`_python`, with `watch.py` and `races.py`). A long one goes on in compiled
code: `instrument.py` puts checks into the source before `_lower` gets it, `accesses.py` and
`thread_operations.py` are their machine code, `runtime.py` is the shadow memory and the scheduler,
`compiled.py` launches it on the memory of `launch_memory.py`.
`annotate.py` shows findings at the lines of the source.

Only `_standins` and scripts call it. Imports `_python`, and the compiler's packages.
Read first: `check.py`.
"""
