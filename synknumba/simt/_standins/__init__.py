"""Programs for `numba.cuda` without a GPU: device arrays, streams, events, devices, and `as_cuda`,
which puts them in place.

No rank imports it. Imports kernels and the check.
Read first: `replace.py`.
"""
