"""Static analyses of one thread's code: uniformity, bounds, types, loops.

`_emit` decides by them where loops begin and end. Imports `_lower` and the packages below it.
Read first: `namespace.py`, then `uniformity.py`.
"""
