"""Pure arithmetic: partition of rows, reductions, moments, launch sizes, trees. No processes, no
devices.
"""
