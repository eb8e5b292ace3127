"""The kernel library: Numba CUDA kernels, one family a file, each beside its reference in NumPy.

A file holds the formulas and their sources, the kernels, how they are launched, and for each kernel what it computes in NumPy:
`name_reference` beside `name`. Functions that make a result of what kernels return, such as `montecarlo.european_call`, follow.
The kernels are ordinary Numba CUDA kernels: copy one into your script and change it.
"""
