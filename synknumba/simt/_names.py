"""From CUDA's words to plain names: the second layer of the compiler.

The result is one thread's code in plain Python: thread indices are variables, the
operations that need no other thread are functions, and what cannot be run has been refused.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import as_dtype

from synknumba._errors import KernelError
from synknumba.simt._ast import assign, expression, load, place, read_names
from synknumba.simt._intrinsics import stack_array
from synknumba.simt._operations import (
    AXES,
    BLOCK,
    BLOCK_SIZE,
    FENCES,
    FUNCTIONS,
    GRID_SIZE,
    INDICES,
    LINEAR,
    STATE,
    THREAD,
    WARP_SIZE,
    cuda_module,
    way_out,
)
from synknumba.simt._scope import MISSING, CudaPath, Scope, is_device_function, is_njit_function
from synknumba.simt._source import CALLED_BUILTINS, Source, read_source


@dataclass(slots=True)
class ThreadCode:
    """One thread's code in plain names.

    Attributes:
        source: the function it was made from.
        body: the statements.
        namespace: what the global names in the body stand for.
        local_arrays: the variables made by `cuda.local.array`.
        uses_state: whether the body reads the thread's place in its block or grid.
    """

    source: Source
    body: list[ast.stmt] = field(default_factory=list)
    namespace: dict[str, Any] = field(default_factory=dict)
    local_arrays: set[str] = field(default_factory=set)
    uses_state: bool = False


class DeviceFunction:
    """A function called in a kernel that is translated too; it is compiled when the kernel is.

    Attributes:
        code: its code; None while it is being translated, which is how a recursion is found.
    """

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.code: ThreadCode | None = None


class Devices:
    """The device functions of one kernel, each translated once."""

    def __init__(self) -> None:
        self._known: dict[FunctionType, DeviceFunction] = {}

    def translate(self, function: FunctionType, refuse: Callable[[str, str], KernelError]) -> DeviceFunction:
        """The function's translation; `refuse` makes the error for a call that cannot be made."""
        device = self._known.get(function)
        if device is None:
            device = self._known[function] = DeviceFunction(function)
            device.code = translate_names(function, self)
        elif device.code is None:
            construct = f"a recursive device function ({function.__qualname__})"
            raise refuse(construct, "write it as a loop")
        return device


def translate_names(function: FunctionType, devices: Devices) -> ThreadCode:
    """One thread's code of a kernel or a device function, in plain names.

    Raises:
        KernelError: it uses something that the CPU cannot run.
    """
    translator = _Translator(read_source(function), devices)
    return translator.run()


class _Translator(ast.NodeTransformer):
    """Rewrites a function's tree in place."""

    def __init__(self, source: Source, devices: Devices) -> None:
        self.code = ThreadCode(source)
        self.source = source
        self.scope = Scope(source)
        self.devices = devices

    def run(self) -> ThreadCode:
        self.code.body = self._block(self.source.tree.body)
        return self.code

    # ---- statements

    def _block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        for statement in body:
            new = self.visit(statement)
            done += new if isinstance(new, list) else [new]
        return done

    def visit_If(self, node: ast.If) -> ast.stmt:
        node.test = self.visit(node.test)
        node.body, node.orelse = self._block(node.body), self._block(node.orelse)
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        node.iter, node.target = self.visit(node.iter), self.visit(node.target)
        node.body = self._block(node.body)
        return node

    def visit_While(self, node: ast.While) -> ast.stmt:
        node.test = self.visit(node.test)
        node.body = self._block(node.body)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        if isinstance(node.value, ast.Call):
            target = self.scope.resolve(node.value.func)
            if isinstance(target, CudaPath) and target.path in FENCES:
                return ast.copy_location(ast.Pass(), node)
        node.value = self.visit(node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | list[ast.stmt]:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        if isinstance(node.value, ast.Call):
            target = self.scope.resolve(node.value.func)
            if isinstance(target, CudaPath) and target.path == "local.array":
                return self._local_array(node, node.value)
        node.value = self.visit(node.value)
        node.targets = [self.visit(target) for target in node.targets]
        return _split_tuple(node)

    def _local_array(self, node: ast.Assign, made: ast.Call) -> ast.stmt:
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            raise self.source.refusal(node, "cuda.local.array() in this place", "assign it to one plain variable")
        args = dict(zip(("shape", "dtype"), made.args, strict=False))
        args |= {keyword.arg: keyword.value for keyword in made.keywords if keyword.arg}
        if "shape" not in args or "dtype" not in args:
            raise self.source.refusal(node, "cuda.local.array() without a shape and a dtype", "give it both")
        self.code.local_arrays.add(node.targets[0].id)
        node.value = place(
            ast.Call(self._bind("stack_array", stack_array), [self._shape(args["shape"]), self._dtype(args["dtype"])], []),
            made,
        )
        return node

    def _shape(self, node: ast.expr) -> ast.expr:
        value = self._constant(node)
        dims = value if isinstance(value, tuple) else (value,)
        if not dims or not all(isinstance(dim, int) and not isinstance(dim, bool) and dim > 0 for dim in dims):
            raise self.source.refusal(node, "an array shape that is not made of positive integer constants", "use constants")
        elements: list[ast.expr] = [ast.Constant(dim) for dim in dims]
        return place(elements[0] if len(elements) == 1 else ast.Tuple(elements, ast.Load()), node)

    def _dtype(self, node: ast.expr) -> ast.expr:
        value = self._constant(node)
        if value is MISSING:  # such as x.dtype, which Numba knows when it types the kernel
            return self.visit(node)  # type: ignore[no-any-return]
        if isinstance(value, types.Record):
            value = as_dtype(value)
        return self._bind("dtype", value if isinstance(value, types.Type) else np.dtype(value))

    def _constant(self, node: ast.expr) -> Any:
        """The value of an expression made of constants and global names; `MISSING` if it names anything else."""
        if read_names(node) & self.scope.locals:
            return MISSING
        try:
            code = compile(ast.fix_missing_locations(ast.Expression(node)), self.source.filename, "eval")
            return eval(code, dict(self.source.scope))  # noqa: S307  # an expression of the user's own source
        except Exception as error:
            raise self.source.refusal(node, f"this constant ({type(error).__name__}: {error})", "use a plain number") from error

    # ---- expressions

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not isinstance(node.ctx, ast.Load) or node.id in self.scope.locals:
            return node
        value = self.scope.resolve(node)
        if isinstance(value, CudaPath):
            return self._operation(node, value.path)
        device = self._device(node, value)
        if device is not None:
            return self._bind_at(node, device.function.__name__, device)
        if node.id in self.source.scope and node.id in CALLED_BUILTINS:
            return self._bind_at(node, f"global_{node.id}", value)
        if node.id in self.source.scope:
            self.code.namespace[node.id] = value
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        value = self.scope.resolve(node)
        if isinstance(value, CudaPath):
            return self._operation(node, value.path)
        device = self._device(node, value)
        if device is not None:
            return self._bind_at(node, device.function.__name__, device)
        return self.generic_visit(node)  # type: ignore[return-value]

    def _operation(self, node: ast.expr, path: str) -> ast.expr:
        """What stands for a member of `numba.cuda` that is read, or called as a function that needs nothing else."""
        if path in INDICES:
            return self._state(node, INDICES[path])
        if path == "laneid":
            return self._state(node, f"{LINEAR} & {WARP_SIZE - 1}")
        if path == "warpsize":
            return ast.copy_location(ast.Constant(WARP_SIZE), node)
        if path in FUNCTIONS:
            return self._bind_at(node, path.replace(".", "_"), FUNCTIONS[path])
        value: Any = cuda_module()
        for part in path.split("."):
            value = getattr(value, part, MISSING)
        if isinstance(value, (types.Type, int, float)):
            return self._bind_at(node, path.replace(".", "_"), value)
        raise self.source.refusal(node, f"cuda.{path}" if path else "the module numba.cuda as a value", way_out(path))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        value = self.scope.resolve(node.func)
        if isinstance(value, CudaPath):
            return self._cuda_call(node, value.path)
        device = self._device(node, value)
        if device is None or device.code is None:
            return self.generic_visit(node)  # type: ignore[return-value]
        if node.keywords:
            raise self.source.refusal(node, f"a keyword argument of {device.function.__name__}()", "pass it by position")
        args = [self.visit(arg) for arg in node.args]
        if device.code.uses_state:
            self.code.uses_state = True
            args = [load(name) for name in STATE] + args
        return place(ast.Call(self._bind_at(node, device.function.__name__, device), args, []), node)

    def _cuda_call(self, node: ast.Call, path: str) -> ast.expr:
        if path in {"grid", "gridsize"}:
            return self._grid(node, path)
        if path == "const.array_like" and len(node.args) == 1 and not node.keywords:
            return self.visit(node.args[0])  # type: ignore[no-any-return]
        if path == "local.array":
            raise self.source.refusal(node, "cuda.local.array() in this place", "assign it to one plain variable")
        if path in FENCES:
            raise self.source.refusal(node, f"cuda.{path}() in this place", "make it a statement of its own")
        if path in INDICES or path in {"laneid", "warpsize"}:
            raise self.source.refusal(node, f"cuda.{path}()", "it is a value, not a function")
        return self.generic_visit(node)  # type: ignore[return-value]

    def _grid(self, node: ast.Call, path: str) -> ast.expr:
        ndim = self._constant(node.args[0]) if len(node.args) == 1 else MISSING
        if ndim not in {1, 2, 3}:
            raise self.source.refusal(node, f"cuda.{path}() of anything but 1, 2 or 3", "write the number of dimensions")
        self.code.uses_state = True
        if path == "grid":
            texts = [f"{BLOCK[axis]} * {BLOCK_SIZE[axis]} + {THREAD[axis]}" for axis in AXES[:ndim]]
        else:
            texts = [f"{BLOCK_SIZE[axis]} * {GRID_SIZE[axis]}" for axis in AXES[:ndim]]
        parts = [expression(text, node) for text in texts]
        return place(parts[0] if ndim == 1 else ast.Tuple(parts, ast.Load()), node)

    def _state(self, node: ast.expr, text: str) -> ast.expr:
        self.code.uses_state = True
        return expression(text, node)

    # ---- functions and constants

    def _device(self, node: ast.expr, value: Any) -> DeviceFunction | None:
        if not is_device_function(value) and not is_njit_function(value):
            return None
        function = value.py_func
        if is_njit_function(value) and not self.scope.mentions_cuda(function):
            return None
        return self.devices.translate(function, lambda construct, hint: self.source.refusal(node, construct, hint))

    def _bind(self, word: str, value: Any) -> ast.Name:
        """A name of the generated function that stands for the value."""
        names = self.code.namespace
        number = 0
        name = f"_k_{word}"
        while name in names and names[name] is not value:
            number += 1
            name = f"_k_{word}_{number}"
        names[name] = value
        return load(name)

    def _bind_at(self, node: ast.expr, word: str, value: Any) -> ast.expr:
        return ast.copy_location(self._bind(word, value), node)


def _split_tuple(node: ast.Assign) -> ast.stmt | list[ast.stmt]:
    """`x, y = a, b` as two assignments, where no right side reads a left side; the analyses see more that way."""
    target, value = node.targets[0], node.value
    if len(node.targets) != 1 or not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return node
    names = [element.id for element in target.elts if isinstance(element, ast.Name)]
    if len(names) != len(target.elts) or len(names) != len(value.elts) or len(set(names)) != len(names):
        return node
    if set(names) & read_names(value):
        return node
    return [assign(name, element, node) for name, element in zip(names, value.elts, strict=True)]
