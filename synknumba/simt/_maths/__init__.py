"""Numbers of a GPU on a CPU: libdevice, directed rounding, 16-bit floats, bits; and the
table of all operations.

`_source` finds in `operations.py` what a name of `numba.cuda` means, `_lower` what to call. Imports
`_library` only.
Read first: `operations.py`.
"""
