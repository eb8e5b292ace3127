"""Findings of `check`: races, indices out of bounds, reads of what nothing wrote.

A check begins in Python (`_python`, with `watch.py` and `races.py`). A long one goes on in compiled
code: `instrument.py` and `accesses.py` put checks into the source before `_lower` gets it,
`runtime.py` is the shadow memory and the scheduler in machine code, `compiled.py` launches it.
`annotate.py` shows findings at the lines of the source.

Only `_standins` and scripts call it. Imports `_python`, and the compiler's packages.
Read first: `check.py`.
"""
