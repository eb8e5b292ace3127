"""Functions of one row made into kernels: `vectorize`, `expectation`, and reductions by a
function.

Called by scripts, through `_api`; imports `_call` and what lies below. Read `base.py` first, then
`map.py` and `generate.py`. The results of `expectation` are in `estimate.py` and `moments.py`.
"""
