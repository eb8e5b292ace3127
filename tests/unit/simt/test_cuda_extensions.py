"""Types, functions and attributes that a program has registered for GPUs alone: kernels on a
core have them too.
"""

import math

import numpy as np
import pytest
from numba import cuda, njit, types
from numba.core import cgutils
from numba.core.typing import templates
from numba.extending import models as core

from synknumba import KernelError, simt


class Interval:
    """An interval, known to CUDA only."""

    def __init__(self, low, high):
        self.low, self.high = low, high


class IntervalType(types.Type):
    def __init__(self):
        super().__init__(name="Interval")


INTERVAL = IntervalType()


def width(interval):
    raise NotImplementedError


def doubled(x):
    """A function for which the CPU has an implementation of its own."""
    raise NotImplementedError


def nowhere(x):
    """A function without code for any processor."""
    raise NotImplementedError


def tripled(x):
    """A function with an overload for the CPU, and other code for GPUs."""
    raise NotImplementedError


@pytest.fixture(scope="module", autouse=True)
def registered():
    from numba.cuda.cudadecl import registry
    from numba.cuda.cudaimpl import lower, lower_attr
    from numba.cuda.models import register_model

    @register_model(IntervalType)
    class Model(core.StructModel):
        def __init__(self, manager, kind):
            super().__init__(manager, kind, [("low", types.float64), ("high", types.float64)])

    @registry.register_global(Interval)
    class Made(templates.ConcreteTemplate):
        cases = [templates.signature(INTERVAL, types.float64, types.float64)]  # noqa: RUF012  # as Numba's templates are written

    @lower(Interval, types.float64, types.float64)
    def make(context, builder, signature, args):
        made = cgutils.create_struct_proxy(signature.return_type)(context, builder)
        made.low, made.high = args
        return made._getvalue()

    @registry.register_attr
    class Attributes(templates.AttributeTemplate):
        key = IntervalType

        def resolve_low(self, _interval):
            return types.float64

    @lower_attr(IntervalType, "low")
    def low(context, builder, kind, value):
        return builder.extract_value(value, 0)

    @registry.register_global(width)
    class Width(templates.ConcreteTemplate):
        cases = [templates.signature(types.float64, INTERVAL)]  # noqa: RUF012

    @lower(width, INTERVAL)
    def width_of(context, builder, signature, args):
        return builder.fsub(builder.extract_value(args[0], 1), builder.extract_value(args[0], 0))

    @registry.register_global(doubled)
    class Doubled(templates.ConcreteTemplate):
        cases = [templates.signature(types.float64, types.float64)]  # noqa: RUF012

    lower(doubled, types.float64)(
        lambda _context, builder, _signature, args: builder.fadd(args[0], args[0])
    )


def test_a_type_and_its_functions():
    @cuda.jit(device=True)
    def moved(interval, by):
        return Interval(interval.low + by, interval.low + by + width(interval))

    @simt.jit
    def kernel(x, out):
        i = cuda.grid(1)
        tile = cuda.shared.array(4, INTERVAL)
        tile[i] = moved(Interval(x[i], math.exp(x[i])), 1.0)
        cuda.syncthreads()
        mine = cuda.local.array(2, dtype=INTERVAL)
        mine[1] = tile[3 - i]
        out[i, 0], out[i, 1] = mine[1].low, width(mine[1])

    x, out = np.arange(4.0), np.zeros((4, 2))
    kernel[1, 4](x, out)
    np.testing.assert_allclose(out, np.stack([x + 1, np.exp(x) - x], 1)[::-1])


def test_a_function_without_code_for_the_cpu():
    def kernel(x):
        x[0] = doubled(x[0])

    simt.jit(kernel)[1, 1](x := np.ones(1))
    assert x[0] == 2


def test_a_function_without_code_is_refused():
    from numba.cuda.cudadecl import registry

    @registry.register_global(nowhere)
    class Nowhere(templates.ConcreteTemplate):
        cases = [templates.signature(types.float64, types.float64)]  # noqa: RUF012

    def kernel(x):
        x[0] = nowhere(x[0])

    with pytest.raises(
        KernelError,
        match="nowhere, without an implementation for the CPU, is not supported on the CPU",
    ):
        simt.jit(kernel)[1, 1](np.ones(1))


def test_what_the_cpu_has_stays():
    """Code for both targets is taken to compute the same."""
    from numba.cuda.cudadecl import registry
    from numba.cuda.cudaimpl import lower
    from numba.extending import overload

    overload(tripled)(lambda x: lambda x: 3 * x)
    assert njit(lambda x: tripled(x))(2.0) == 6  # noqa: PLW0108

    @registry.register_global(tripled)
    class Tripled(templates.ConcreteTemplate):
        cases = [templates.signature(types.float64, types.float64)]  # noqa: RUF012

    lower(tripled, types.float64)(lambda _context, _builder, _signature, args: args[0])

    def kernel(x):
        x[0] = tripled(x[0])

    simt.jit(kernel)[1, 1](x := np.ones(1))
    assert x[0] == 3
