"""Training: a gradient and an optimiser become a step on all ranks.

step = synk.train.step(gradient, params, synk.optim.adam(1e-3))
for rows in synk.batches(len(x), 128, seed=0, epochs=10):
    loss = step(x, y, batch=rows)
"""

from synknumba._learning.training import TrainFunction as TrainFunction
from synknumba._learning.training import step as step

make_train_function = step  # Synkhronos' name
