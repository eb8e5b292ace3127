"""Implementations of CUDA's operations on a CPU: atomics, collectives, libdevice, vector types."""
