"""Compilation of generated code: Numba code generation, vector math libraries, the on-disk
kernel cache.
"""
