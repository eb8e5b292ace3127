"""What `_names` makes of a function: one thread's code, and what it needs around it."""

import ast
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from synknumba.simt._arrays import SharedArray
from synknumba.simt._source import Source


@dataclass(slots=True)
class ThreadCode:
    """One thread's code in plain names.

    Attributes:
        source: the function it was made from.
        body: the statements.
        namespace: what the global names in the body stand for.
        local_arrays: the variables made by `cuda.local.array`.
        shared_arrays: the variables made by `cuda.shared.array`.
        uses_state: whether the body reads the thread's place in its block or grid.
        needs_block: whether it has barriers, collectives or shared arrays, so that a device function is pasted into the kernel.
    """

    source: Source
    body: list[ast.stmt] = field(default_factory=list)
    namespace: dict[str, Any] = field(default_factory=dict)
    local_arrays: set[str] = field(default_factory=set)
    shared_arrays: dict[str, SharedArray] = field(default_factory=dict)
    uses_state: bool = False
    needs_block: bool = False


class DeviceFunction:
    """A function called in a kernel that is translated too; it is compiled when the kernel is.

    Attributes:
        code: its code; None while it is being translated, which is how a recursion is found.
        is_recursive: whether it calls itself, perhaps through others.
    """

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.code: ThreadCode | None = None
        self.is_recursive = False
