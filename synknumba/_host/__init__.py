"""Host-side building blocks: shared memory, `Data`, leases, copies, signals, child processes."""
