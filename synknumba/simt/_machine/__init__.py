"""From generated code to machine code: Numba's code generation, vector maths, the cache on disk.

`_entries` and `_emit` compile by it. Imports `_lower`, `_source` and `_numba`.
Read first: `codegen.py`, then `cache.py`.
"""
