"""Pure arithmetic, without processes: partition, reductions, launch sizes, trees.

Called by all packages above; imports the small modules only (`_types`, `_errors`). Read `rows.py`
first, who gets which rows, then `reduction.py`.
"""
