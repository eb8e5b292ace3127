"""Pure arithmetic, without processes: partition, reductions, moments, launch sizes, trees.

Called by all packages above; imports the small modules only (`_types`, `_errors`). Read `rows.py`
first, who gets which rows, then `reduction.py`.
"""
