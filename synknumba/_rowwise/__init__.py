"""Functions of one row made into kernels: `vectorize`, `expectation`, and reductions by a
function.
"""
