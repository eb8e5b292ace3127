"""What the host has: shared segments, `Data`, leases on memory, signals, child processes."""
