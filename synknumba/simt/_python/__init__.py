"""Kernels as Python, thread by thread: `debug`, and the beginning of each `check`.

The compiler's oracle: imports of it no more than how a user's function is read, but for
`launch.py`, which knows kernels. `_checker` calls it. Imports `_kernel` and `_source`, of `_lower`
signatures and arrays.
Read first: `run.py`, then `source.py`.
"""
