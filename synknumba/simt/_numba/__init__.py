"""What simt changes in Numba's own compiler and runtime: passes, single assignment, calls, frames.

`_machine` and `_analysis` compile and type by it. Imports `_maths` only.
Read first: `compilation.py`.
"""
