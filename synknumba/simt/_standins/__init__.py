"""Stand-ins for what `numba.cuda` takes from a GPU: memory, streams, events, devices, and the
decorator `jit`.
"""
