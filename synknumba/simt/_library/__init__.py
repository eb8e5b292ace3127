"""CUDA's operations for the CPU target: atomics, collectives, libdevice, vector types."""
