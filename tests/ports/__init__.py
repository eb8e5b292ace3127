"""Programs of other people with Numba CUDA kernels, whose own tests for GPUs run through the
plugin `synknumba.simt.pytest`.
"""
