"""Host-side building blocks: shared memory segments, `Data`, leases, copies, signals, child
processes.
"""
