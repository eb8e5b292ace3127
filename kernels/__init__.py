"""Kernel library: Numba CUDA kernels with NumPy references, one family per file.

Each file has the formulas with their sources, the kernels with their launch rules, and a NumPy
reference `name_reference` for each kernel `name`. Functions that combine kernel outputs into a
result, such as `montecarlo.european_call`, follow at the end. The kernels are ordinary Numba CUDA
kernels: copy one into your script and change it.
"""
