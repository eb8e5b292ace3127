"""Optimisers: pure functions from gradients to steps, composed by `chain`, and as one kernel on the
ranks.

    optimizer = synk.optim.chain(synk.optim.clip_by_global_norm(1.0), synk.optim.adam(1e-3))
    state = optimizer.init(params)
    step, state = optimizer.update(gradient, state, params)
    params = synk.optim.apply_updates(params, step)

Learning rates, and other arguments that say so, are numbers or schedules: functions of the number
of steps. Numbers that are not finite or out of range raise `ArgumentError`. `updater` and
`synknumba.train` make steps on the ranks.
"""

from synknumba._learning.rules import adadelta as adadelta
from synknumba._learning.rules import adagrad as adagrad
from synknumba._learning.rules import adam as adam
from synknumba._learning.rules import adamax as adamax
from synknumba._learning.rules import adamw as adamw
from synknumba._learning.rules import averaged as averaged
from synknumba._learning.rules import clip as clip
from synknumba._learning.rules import clip_by_global_norm as clip_by_global_norm
from synknumba._learning.rules import decay_weights as decay_weights
from synknumba._learning.rules import lion as lion
from synknumba._learning.rules import momentum as momentum
from synknumba._learning.rules import nesterov_momentum as nesterov_momentum
from synknumba._learning.rules import rmsprop as rmsprop
from synknumba._learning.rules import scale as scale
from synknumba._learning.rules import sgd as sgd
from synknumba._learning.schedules import constant as constant
from synknumba._learning.schedules import cosine as cosine
from synknumba._learning.schedules import exponential as exponential
from synknumba._learning.schedules import linear as linear
from synknumba._learning.schedules import warm_up as warm_up
from synknumba._learning.transform import Optimizer as Optimizer
from synknumba._learning.transform import State as State
from synknumba._learning.transform import accumulate as accumulate
from synknumba._learning.transform import apply_updates as apply_updates
from synknumba._learning.transform import chain as chain
from synknumba._learning.transform import global_norm as global_norm
from synknumba._learning.updater import Updater as Updater
from synknumba._learning.updater import updater as updater
