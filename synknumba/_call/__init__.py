"""One call in the coordinator: arguments, rows, plan, results.

Called by the decorators of `_api`, by `_rowwise`, `_sequence` and training; imports `_source`,
`_variables`, `_world` and what lies below. Read `function.py` first, whose `_call` is the way of a
call; then `work_out.py`, with `bind.py`, `kinds.py` (what an argument is) and `select_rows.py`,
which make a `Call` (`call.py`); then `plan.py` and `collect.py`.
"""
