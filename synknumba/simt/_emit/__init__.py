"""Code generation: turns one thread's code into code for one core (regions, masks, storage) and
builds the launch function.
"""
