"""From generated code to machine code: Numba, vector maths, the cache of compiled kernels."""
