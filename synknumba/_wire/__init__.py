"""Communication between coordinator and ranks: programs, messages, the control block, doorbells,
pickling, results.

Called by both sides; imports `simt.internals`, `_host` and `_ops`. Read `program.py` and
`control.py` first, then `doorbell.py` with docs/design/2026-11-21-memory-model.md.
"""
