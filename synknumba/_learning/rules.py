"""The rules of optimisers, each a function of one element, and what makes an `Optimizer` of them.

Letters: g the gradient or the step so far, p a parameter, lr the learning rate, t the number of
this step from 1. The step is added to the parameter. Formulas and defaults are those of Lasagne's
updates, which Synkhronos extended, where it has them.

Rules have no constants of their own: a number in a rule would be of 64 bits in a kernel, and make
all arithmetic so.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from typing import Any

from numpy import absolute, bool_, maximum, minimum, sign, sqrt

from synknumba._errors import ArgumentError, DataError
from synknumba._learning.schedules import Schedule, schedule_of
from synknumba._learning.transform import (
    Numbers,
    Optimizer,
    Slot,
    Transform,
    chain,
    check_optimizer,
)
from synknumba._ops.tree import describe, flatten, paths, spread, unflatten

Rate = Schedule | float


def sgd(learning_rate: Rate) -> Optimizer:
    """Gradient descent: −lr · g.

    Args:
        learning_rate: a number, or a schedule.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> w = np.array([1.0, -2.0])
        >>> optimizer = synk.optim.sgd(0.1)
        >>> step, state = optimizer.update(2 * w, optimizer.init(w), w)
        >>> synk.optim.apply_updates(w, step)
        array([ 0.8, -1.6])
    """
    return scale_by_rate("sgd", learning_rate)


def momentum(learning_rate: Rate, momentum: float = 0.9) -> Optimizer:
    """Gradient descent with momentum: v ← m · v − lr · g; the step is v.

    Source: Sutskever et al., On the importance of initialization and momentum in deep learning,
    ICML 2013, equations 1 and 2.

    Args:
        learning_rate: lr, a number or a schedule.
        momentum: m, from 0 to below 1.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.momentum(0.1, momentum=0.5)
        >>> w = np.array([1.0])
        >>> state = optimizer.init(w)
        >>> for _ in range(2):
        ...     step, state = optimizer.update(np.array([1.0]), state, w)
        >>> step
        array([-0.15])
    """
    return _with_velocity("momentum", heavy_ball, learning_rate, momentum)


def heavy_ball(g: Any, p: Any, v: Any, m: Any, rate: Any) -> Any:
    v = m * v - rate * g
    return v, v


def nesterov_momentum(learning_rate: Rate, momentum: float = 0.9) -> Optimizer:
    """Nesterov's momentum: v ← m · v − lr · g; the step is m · v − lr · g, with the new v.

    Source: Bengio et al., Advances in optimizing recurrent networks, arXiv:1212.0901, equation 7.

    Args:
        learning_rate: lr, a number or a schedule.
        momentum: m, from 0 to below 1.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.nesterov_momentum(0.1, momentum=0.5)
        >>> w = np.array([1.0])
        >>> optimizer.update(np.array([1.0]), optimizer.init(w), w)[0].round(6)
        array([-0.15])
    """
    return _with_velocity("nesterov_momentum", nesterov, learning_rate, momentum)


def nesterov(g: Any, p: Any, v: Any, m: Any, rate: Any) -> Any:
    v = m * v - rate * g
    return m * v - rate * g, v


def _with_velocity(
    what: str, rule: Callable[..., Any], learning_rate: Rate, momentum: float
) -> Optimizer:
    rate = schedule_of(what, "learning_rate", learning_rate)
    m = _fraction(what, "momentum", momentum)
    return _single(rule, lambda count: (m, rate(count)), Slot("velocity"))


def adagrad(learning_rate: Rate = 1.0, epsilon: float = 1e-6) -> Optimizer:
    """AdaGrad: a ← a + g²; the step is −lr · g / √(a + ε).

    Source: Duchi, Hazan and Singer, Adaptive subgradient methods, JMLR 12 (2011) 2121.

    Args:
        learning_rate: lr, a number or a schedule.
        epsilon: ε, positive.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.adagrad(0.5)
        >>> w = np.array([1.0])
        >>> optimizer.update(np.array([3.0]), optimizer.init(w), w)[0].round(6)
        array([-0.5])
    """
    rate = schedule_of("adagrad", "learning_rate", learning_rate)
    eps = _positive("adagrad", "epsilon", epsilon)
    return _single(sum_of_squares, lambda count: (rate(count), eps), Slot("squares"))


def sum_of_squares(g: Any, p: Any, a: Any, rate: Any, eps: Any) -> Any:
    a = a + g * g
    return -rate * g / sqrt(a + eps), a


def rmsprop(learning_rate: Rate = 1.0, rho: float = 0.9, epsilon: float = 1e-6) -> Optimizer:
    """RMSProp: a ← ρ · a + (1 − ρ) · g²; the step is −lr · g / √(a + ε).

    Source: Tieleman and Hinton, Lecture 6.5, Neural networks for machine learning, Coursera 2012.

    Args:
        learning_rate: lr, a number or a schedule.
        rho: ρ, from 0 to below 1.
        epsilon: ε, positive.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.rmsprop(0.1, rho=0.75)
        >>> w = np.array([1.0])
        >>> optimizer.update(np.array([4.0]), optimizer.init(w), w)[0].round(6)
        array([-0.2])
    """
    numbers = _numbers_of_means("rmsprop", learning_rate, rho, epsilon)
    return _single(mean_of_squares, numbers, Slot("squares"))


def mean_of_squares(g: Any, p: Any, a: Any, r: Any, c: Any, rate: Any, eps: Any) -> Any:
    a = r * a + c * g * g
    return -rate * g / sqrt(a + eps), a


def adadelta(learning_rate: Rate = 1.0, rho: float = 0.95, epsilon: float = 1e-6) -> Optimizer:
    """AdaDelta: a ← ρ · a + (1 − ρ) · g²; s = g · √(d + ε) / √(a + ε); the step is −lr · s; d ← ρ ·
    d + (1 − ρ) · s².

    Source: Zeiler, ADADELTA, arXiv:1212.5701, algorithm 1.

    Args:
        learning_rate: lr, a number or a schedule.
        rho: ρ, from 0 to below 1.
        epsilon: ε, positive.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.adadelta()
        >>> w = np.array([1.0])
        >>> optimizer.update(np.array([1.0]), optimizer.init(w), w)[0].round(6)
        array([-0.004472])
    """
    numbers = _numbers_of_means("adadelta", learning_rate, rho, epsilon)
    return _single(ratio_of_means, numbers, Slot("squares"), Slot("steps"))


def ratio_of_means(g: Any, p: Any, a: Any, d: Any, r: Any, c: Any, rate: Any, eps: Any) -> Any:
    a = r * a + c * g * g
    s = g * sqrt(d + eps) / sqrt(a + eps)
    return -rate * s, a, r * d + c * s * s


def _numbers_of_means(what: str, learning_rate: Rate, rho: float, epsilon: float) -> Numbers:
    rate = schedule_of(what, "learning_rate", learning_rate)
    r = _fraction(what, "rho", rho)
    eps = _positive(what, "epsilon", epsilon)
    return lambda count: (r, 1.0 - r, rate(count), eps)


def adam(
    learning_rate: Rate = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> Optimizer:
    """Adam: m ← β₁ · m + (1 − β₁) · g; v ← β₂ · v + (1 − β₂) · g²; the step is −lr · √(1 − β₂ᵗ) /
    (1 − β₁ᵗ) · m / (√v + ε).

    Source: Kingma and Ba, arXiv:1412.6980, the order of computation at the end of section 2. Its ε
    is √(1 − β₂ᵗ) times that of
    algorithm 1, which `adamw`, optax and torch use.

    Args:
        learning_rate: lr, a number or a schedule.
        beta1: β₁, from 0 to below 1.
        beta2: β₂, from 0 to below 1.
        epsilon: ε, positive.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.adam(0.1)
        >>> w = np.array([1.0, 1.0])
        >>> optimizer.update(np.array([0.001, -5.0]), optimizer.init(w), w)[0].round(4)
        array([-0.1,  0.1])
    """
    rate, b1, b2, eps = _moments("adam", learning_rate, beta1, beta2, epsilon)

    def numbers(count: float) -> tuple[float, ...]:
        steps = count + 1
        corrected = math.sqrt(1.0 - b2**steps) / (1.0 - b1**steps)
        return b1, 1.0 - b1, b2, 1.0 - b2, -rate(count) * corrected, eps

    return _single(moments, numbers, Slot("m"), Slot("v"))


def adamw(
    learning_rate: Rate = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: Rate = 1e-4,
    mask: Any = None,
) -> Optimizer:
    """Adam with decoupled weight decay: the step is −lr · (m̂ / (√v̂ + ε) + decay · p), m̂ = m / (1
    − β₁ᵗ), v̂ = v / (1 − β₂ᵗ).

    Source: Loshchilov and Hutter, Decoupled weight decay regularization, arXiv:1711.05101,
    algorithm 2 without the schedule
    multiplier's second use: decay is multiplied by lr, as in optax and torch.

    Args:
        learning_rate: lr, a number or a schedule.
        beta1: β₁, from 0 to below 1.
        beta2: β₂, from 0 to below 1.
        epsilon: ε, positive.
        weight_decay: a number or a schedule.
        mask: see `decay_weights`.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.adamw(0.1, weight_decay=0.5)
        >>> w = np.array([2.0])
        >>> optimizer.update(np.array([3.0]), optimizer.init(w), w)[0].round(6)
        array([-0.2])
    """
    _, b1, b2, eps = _moments("adamw", 1.0, beta1, beta2, epsilon)

    def numbers(count: float) -> tuple[float, ...]:
        steps = count + 1
        root = math.sqrt(1.0 - b2**steps)
        return b1, 1.0 - b1, b2, 1.0 - b2, root / (1.0 - b1**steps), eps * root

    direction = _single(moments, numbers, Slot("m"), Slot("v"))
    return chain(
        direction, decay_weights(weight_decay, mask), scale_by_rate("adamw", learning_rate)
    )


def moments(
    g: Any, p: Any, m: Any, v: Any, b1: Any, c1: Any, b2: Any, c2: Any, rate: Any, eps: Any
) -> Any:
    m = b1 * m + c1 * g
    v = b2 * v + c2 * g * g
    return rate * m / (sqrt(v) + eps), m, v


def adamax(
    learning_rate: Rate = 0.002, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8
) -> Optimizer:
    """AdaMax: m ← β₁ · m + (1 − β₁) · g; u ← max(β₂ · u, |g|); the step is −lr / (1 − β₁ᵗ) · m / (u
    + ε).

    Source: Kingma and Ba, arXiv:1412.6980, algorithm 2, with an ε that keeps 0/0 away.

    Args:
        learning_rate: lr, a number or a schedule.
        beta1: β₁, from 0 to below 1.
        beta2: β₂, from 0 to below 1.
        epsilon: ε, positive.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.adamax(0.1)
        >>> w = np.array([1.0])
        >>> optimizer.update(np.array([-4.0]), optimizer.init(w), w)[0].round(6)
        array([0.1])
    """
    rate, b1, b2, eps = _moments("adamax", learning_rate, beta1, beta2, epsilon)

    def numbers(count: float) -> tuple[float, ...]:
        return b1, 1.0 - b1, b2, -rate(count) / (1.0 - b1 ** (count + 1)), eps

    return _single(largest, numbers, Slot("m"), Slot("u"))


def largest(g: Any, p: Any, m: Any, u: Any, b1: Any, c1: Any, b2: Any, rate: Any, eps: Any) -> Any:
    m = b1 * m + c1 * g
    u = maximum(b2 * u, absolute(g))
    return rate * m / (u + eps), m, u


def lion(
    learning_rate: Rate = 1e-4,
    beta1: float = 0.9,
    beta2: float = 0.99,
    weight_decay: Rate = 1e-3,
    mask: Any = None,
) -> Optimizer:
    """Lion: the step is −lr · (sign(β₁ · m + (1 − β₁) · g) + decay · p); m ← β₂ · m + (1 − β₂) · g.

    Source: Chen et al., Symbolic discovery of optimization algorithms, arXiv:2302.06675, algorithm
    2.

    Args:
        learning_rate: lr, a number or a schedule.
        beta1: β₁, from 0 to below 1.
        beta2: β₂, from 0 to below 1.
        weight_decay: a number or a schedule.
        mask: see `decay_weights`.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.lion(0.1, weight_decay=0.0)
        >>> w = np.array([1.0, 1.0])
        >>> optimizer.update(np.array([7.0, -0.01]), optimizer.init(w), w)[0]
        array([-0.1,  0.1])
    """
    b1, b2 = _fraction("lion", "beta1", beta1), _fraction("lion", "beta2", beta2)
    direction = _single(signs, lambda count: (b1, 1.0 - b1, b2, 1.0 - b2), Slot("m"))
    return chain(direction, decay_weights(weight_decay, mask), scale_by_rate("lion", learning_rate))


def signs(g: Any, p: Any, m: Any, b1: Any, c1: Any, b2: Any, c2: Any) -> Any:
    return sign(b1 * m + c1 * g), b2 * m + c2 * g


# ---- parts


def scale(factor: Rate) -> Optimizer:
    """Multiplies the step by a factor: factor · g.

    Args:
        factor: a number or a schedule.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> half = synk.optim.scale(0.5)
        >>> step, _ = half.update(np.array([1.0, 2.0]), half.init(np.zeros(2)), np.zeros(2))
        >>> step
        array([0.5, 1. ])
    """
    by = schedule_of("scale", "factor", factor)
    return _single(scaled, lambda count: (by(count),))


def scale_by_rate(what: str, learning_rate: Rate) -> Optimizer:
    """Multiplies the step by −lr."""
    rate = schedule_of(what, "learning_rate", learning_rate)
    return _single(scaled, lambda count: (-rate(count),))


def scaled(g: Any, p: Any, factor: Any) -> Any:
    return factor * g


def clip(limit: float) -> Optimizer:
    """Clips each element of the gradient to the range from −limit to limit.

    Args:
        limit: positive.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.chain(synk.optim.clip(1.0), synk.optim.sgd(0.5))
        >>> w = np.zeros(3)
        >>> optimizer.update(np.array([-7.0, 0.5, 2.0]), optimizer.init(w), w)[0]
        array([ 0.5 , -0.25, -0.5 ])
    """
    most = _positive("clip", "limit", limit)
    return _single(clipped, lambda count: (-most, most), goes_up=True)


def clipped(g: Any, p: Any, low: Any, high: Any) -> Any:
    return minimum(maximum(g, low), high)


def clip_by_global_norm(limit: float) -> Optimizer:
    """Scales the gradient so that its Euclidean norm, over all parameters, is at most `limit`.

    Squares are added up in float64: a gradient with an element above 1e154 becomes 0 in `update`,
    and makes no step of a training step that checks for infinities.

    Source: Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks,
    arXiv:1211.5063, algorithm 1.

    Args:
        limit: positive.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> w = {"a": np.zeros(1), "b": np.zeros(1)}
        >>> optimizer = synk.optim.clip_by_global_norm(1.0)
        >>> optimizer.update({"a": np.array([3.0]), "b": np.array([4.0])}, optimizer.init(w), w)[0]
        {'a': array([0.6]), 'b': array([0.8])}
    """
    most = _positive("clip_by_global_norm", "limit", limit)
    return _single(shortened, lambda count: (most,), needs_norm=True, goes_up=True)


def shortened(g: Any, p: Any, most: Any, norm: Any) -> Any:
    return g if norm <= most else g * (most / norm)


def decay_weights(decay: Rate, mask: Any = None) -> Optimizer:
    """Adds decay · p to the gradient; before the rate of the optimiser, in a chain, it is L2
    regularisation.

    Args:
        decay: a number or a schedule.
        mask: tree of bools, with the structure of the parameters or a prefix of it, or a function
            from the parameters to one: which are decayed. None for all.

    Raises:
        DataError: raised by `init`, if the mask has another structure.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> w = {"w": np.ones(1), "b": np.ones(1)}
        >>> optimizer = synk.optim.decay_weights(0.5, mask={"w": True, "b": False})
        >>> zero = {"w": np.zeros(1), "b": np.zeros(1)}
        >>> optimizer.update(zero, optimizer.init(w), w)[0]
        {'w': array([0.5]), 'b': array([0.])}
    """
    by = schedule_of("decay_weights", "decay", decay)

    def numbers(count: float) -> tuple[float, ...]:
        return (by(count),)

    if mask is None:
        return _single(decayed, numbers, goes_up=True)

    def chosen(params: Any) -> Any:
        choice = mask(params) if callable(mask) else mask
        structure = flatten(params)[1]
        spread_out = spread(choice, structure)
        if spread_out is None:
            raise DataError(
                f"the mask is {describe(flatten(choice)[1])}, but the parameters "
                f"are {describe(structure)}"
            )
        for path, decision in zip(paths(structure), spread_out, strict=True):
            if not isinstance(decision, bool | bool_):
                raise DataError(f"the mask needs True or False for params{path}, got {decision!r}")
        return unflatten(structure, [float(decision) for decision in spread_out])

    return _single(decayed_where, numbers, Slot("mask", chosen, is_constant=True), goes_up=True)


def decayed(g: Any, p: Any, decay: Any) -> Any:
    return g + decay * p


def decayed_where(g: Any, p: Any, chosen: Any, decay: Any) -> Any:
    return g + decay * chosen * p


def averaged(optimizer: Optimizer, decay: float = 0.999) -> Optimizer:
    """Keeps a moving average of the parameters: a ← decay · a + (1 − decay) · p, with p after the
    step; a begins as p.

    The parameters themselves are as without. The average is `average` of the last part of the
    state.

    Args:
        optimizer: makes the steps.
        decay: from 0 to below 1.

    Example:
        >>> import numpy as np
        >>> import synknumba as synk
        >>> optimizer = synk.optim.averaged(synk.optim.sgd(1.0), decay=0.75)
        >>> w = np.array([8.0])
        >>> step, state = optimizer.update(np.array([4.0]), optimizer.init(w), w)
        >>> step, state.parts[-1]["average"]
        (array([-4.]), array([7.]))
    """
    check_optimizer("averaged", optimizer)
    d = _fraction("averaged", "decay", decay)
    if optimizer.keeps_average:
        raise ArgumentError("averaged got an optimiser that keeps an average already")
    average = Transform(
        moving_average, lambda count: (d, 1.0 - d), (Slot("average", "params"),), goes_up=True
    )
    return replace(optimizer, transforms=(*optimizer.transforms, average))


def moving_average(g: Any, p: Any, a: Any, d: Any, c: Any) -> Any:
    return g, d * a + c * (p + g)


def _single(rule: Callable[..., Any], numbers: Numbers, *slots: Slot, **options: bool) -> Optimizer:
    """Returns an optimiser of one part."""
    return Optimizer((Transform(rule, numbers, slots, **options),))


# ---- arguments


def _moments(
    what: str, rate: Rate, beta1: float, beta2: float, epsilon: float
) -> tuple[Schedule, float, float, float]:
    return (
        schedule_of(what, "learning_rate", rate),
        _fraction(what, "beta1", beta1),
        _fraction(what, "beta2", beta2),
        _positive(what, "epsilon", epsilon),
    )


def _fraction(what: str, name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < 1:
        raise ArgumentError(f"{what} needs {name} as a number from 0 to below 1, got {value!r}")
    return float(value)


def _positive(what: str, name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ArgumentError(f"{what} needs {name} as a positive number, got {value!r}")
    return float(value)
