"""The kernel library: Numba CUDA kernels, one family a file, each beside its reference in NumPy.

A file holds the formula and its source, the kernel, how it is launched, and `reference(...)`. The kernels are ordinary Numba
CUDA kernels: copy one into your script and change it.
"""
