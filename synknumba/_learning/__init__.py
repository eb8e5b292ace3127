"""Learning and inference: optimisers, training steps, batches and checkpoints, made of
functions, variables and sequences.
"""
