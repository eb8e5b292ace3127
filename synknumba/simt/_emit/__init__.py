"""From the code of one thread to loops over the blocks of a grid and the threads of a block.

`_entries` and the compiled check build kernels by it. Imports `_analysis`, `_machine` and the
packages below them.
Read first: `build.py`, then `emit.py` and `region.py`.
"""
