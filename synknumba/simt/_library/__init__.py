"""CUDA's operations on a CPU: atomics, collectives, barriers, vector types, and the words of
generated code.

`_lower` and `_emit` write calls of these intrinsics, and `_maths` builds on them. Imports nothing
else of simt.
Read first: `words.py`, then `typed.py`, by which most tables of functions are made.
"""
