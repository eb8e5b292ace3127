"""What is asked of a kernel: which parameters it surely reads, and to which it writes when
Python runs it on NumPy arrays.
"""

import numpy as np

from synknumba._source.access import read_parameters


def arguments(kernel):
    """Arguments by name, as the kernels here use them: x and y have an axis, m has two, c three,
    n is a number.
    """
    every = {
        "x": np.arange(1.0, 9.0),
        "y": np.arange(2.0, 10.0),
        "at": np.array([3, 1, 2, 0]),
        "m": np.arange(1.0, 17.0).reshape(4, 4),
        "c": np.arange(1.0, 28.0).reshape(3, 3, 3),
        "out": np.zeros(8),
        "n": 2,
        "k": None,
        "pair": (1, 2),
    }
    return {
        name: every[name] for name in kernel.__code__.co_varnames[: kernel.__code__.co_argcount]
    }


def read(kernel):
    known = {
        name: np.ndim(value)
        for name, value in arguments(kernel).items()
        if isinstance(value, np.ndarray | int)
    }
    return read_parameters(kernel, known)


def run(kernel):
    """The parameters that are written to when the kernel is run."""
    given = arguments(kernel)
    before = {name: value.copy() for name, value in given.items() if isinstance(value, np.ndarray)}
    kernel(**given)
    return {name for name, value in before.items() if not np.array_equal(value, given[name])}
