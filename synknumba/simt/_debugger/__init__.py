"""Kernel debugger: runs kernels in Python, thread by thread, for `debug` and `check`."""
