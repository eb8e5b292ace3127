"""What the user wrote: a function's definition, the names in it and their values, its pickles.

All stages above read functions by it. Imports `_maths` and `_library`.
Read first: `written.py` and `source.py`, then `scope.py`, which says what a name means.
"""
