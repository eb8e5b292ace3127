"""Learning and inference: optimisers, training steps, batches and checkpoints, made of
functions, variables and sequences.

Called by scripts, through `optim` and `train`; imports the public interface and whatever is below
it. Read `training.py` first, then `rules.py` and `updater.py`.
"""
