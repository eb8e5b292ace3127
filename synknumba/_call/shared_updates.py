"""Updates of variables by a call with `shards=`: the same bits on every rank, and for every number
of ranks.

    ranks          shard s accumulates into parts[s], in shared memory
    coordinator    parts[0] op parts[1] op …  ──>  the variable, on every rank (with `as_serial`, on the root)

Without `shards=`, each rank assigns what its own rows give (`_rank/outputs.py`).
"""  # noqa: E501

import math
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import final

import numpy as np

from synknumba._call.call import Call
from synknumba._host.segment import Segment
from synknumba._ops import reduction
from synknumba._types import Array, Op
from synknumba._variables.state import Assignment, VariableState
from synknumba._wire.program import HostArray, Param, Tree, Update
from synknumba._world.engine import Engine


@final
class SharedUpdates:
    """The updated variables of one plan, and the memory of their shards' parts.

    Args:
        call: the call that the plan is made for, with shards.
        updates: variable and op by parameter.
    """

    def __init__(self, call: Call, updates: Mapping[str, tuple[VariableState, Op]]) -> None:
        assert call.options.shards is not None  # only then are parts kept apart
        self._shards = int(call.options.shards)
        self._ranks = range(call.run_partition.parts)
        self.segments: list[Segment] = []
        self.parameters: dict[str, Param] = {}
        self._assigned = []
        for name, (variable, op) in updates.items():
            assert isinstance(op, str)  # `check_updates` accepts no function
            param, parts = call.parameters[name], list[Array]()
            if isinstance(param, Tree):
                leaves = tuple(self._apart(leaf, parts) for leaf in param.leaves)
                self.parameters[name] = replace(param, leaves=leaves)
            else:
                self.parameters[name] = self._apart(param, parts)
            self._assigned.append((weakref.ref(variable), reduction.UFUNCS[op], parts))

    def _apart(self, param: Param, parts: list[Array]) -> Update:
        """Returns the parameter of an accumulator, with memory for the parts of all shards."""
        assert isinstance(param, Update)  # what `updates=` names is nothing else
        dtype, shape = np.dtype(param.dtype), (self._shards, *param.shapes[0])
        segment = Segment(math.prod(shape) * dtype.itemsize)
        self.segments.append(segment)
        parts.append(segment.array(dtype, shape))
        return replace(param, parts=HostArray(segment.id, dtype, shape))

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory held for the parts."""
        return sum(segment.size for segment in self.segments)

    def assign(self, world: Engine) -> None:
        """Combines the parts in the order of the shards, and assigns the variables; between the
        world's `begin` and `end`.
        """
        for reference, ufunc, parts in self._assigned:
            variable = reference()
            assert variable is not None  # the function that is being called holds it
            values = [np.asarray(ufunc.reduce(part, 0, part.dtype)) for part in parts]
            of_ranks = dict.fromkeys(self._ranks, values)
            variable.assign(world, Assignment(variable, of_ranks, variable.storage()))
