"""Host-side building blocks: shared memory, `Data`, leases, copies, signals, child processes.

Called by all packages above; imports the small modules only (`_types`, `_errors`). Read
`segment.py` first, then `data.py`.
"""
