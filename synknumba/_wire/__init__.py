"""Communication between coordinator and ranks: programs, messages, the control block, doorbells,
pickling, results.
"""
