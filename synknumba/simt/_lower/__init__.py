"""From a definition to the code of one thread: CUDA's names, device functions, signatures, Python's
forms.

`_emit`, `_entries`, `_kernel` and the checker call it. Imports `_source`, `_maths` and `_library`.
Read first: `lowering.py`.
"""
