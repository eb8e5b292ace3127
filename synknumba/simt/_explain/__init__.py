"""Errors in the user's words: what Numba could not compile, what a launch cannot take, and what to
write instead.

`_entries`, `_kernel` and `_python` raise them, and other packages through `internals`. Imports
`_source`, `_maths` and `_library`.
Read first: `compile_errors.py`.
"""
