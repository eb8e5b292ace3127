"""Kernels run in Python, thread by thread: `debug` and `check`."""
