"""The last layer of the compiler: from a kernel's code to a function that Numba has compiled for given argument types."""

import ast
import copy
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
from numba import njit
from numba.core import types
from numba.np.numpy_support import as_dtype

from synknumba.simt._analysis import NONNEG, Analysis
from synknumba.simt._ast import assign, assigned_names, load, place, read_names, statements, unparse
from synknumba.simt._emit import LINEAR_TEXT, BlockCode, emit_blocks
from synknumba.simt._flat import flatten
from synknumba.simt._intrinsics import (
    assume,
    ceil_bound,
    floor_bound,
    nonneg,
    stack_array,
    sum_any_order,
    zero_like_element,
)
from synknumba.simt._loops import count_up
from synknumba.simt._names import DeviceFunction, Devices, ThreadCode, translate_names
from synknumba.simt._operations import LINEAR, SIZES, STATE
from synknumba.simt._types import VariableTypes, infer_types

# CUDA's limit; a slot array on the stack has this many elements.
MAX_BLOCK = 1024

_HELPERS: dict[str, Any] = {
    NONNEG: nonneg,
    "_k_assume": assume,
    "_k_ceil_bound": ceil_bound,
    "_k_floor_bound": floor_bound,
    "_k_stack_array": stack_array,
    "_k_sum_any_order": sum_any_order,
    "_k_zero_like_element": zero_like_element,
}

TypeMap = Mapping[str, types.Type]


@dataclass(frozen=True, slots=True)
class Options:
    """How Numba compiles a kernel.

    Attributes:
        fastmath: as `numba.njit` takes it. GPUs contract `a * b + c` by default, so that is the default here.
    """

    fastmath: bool | frozenset[str] = frozenset({"contract"})

    def njit(self, function: Callable[..., Any], **more: Any) -> Any:
        """The function, to be compiled by Numba."""
        fastmath = set(self.fastmath) if isinstance(self.fastmath, frozenset) else self.fastmath
        # A possible ZeroDivisionError would be an exit from the loop, which then does not vectorize.
        return njit(error_model="numpy", fastmath=fastmath, **more)(function)


class Program:
    """A kernel in plain names: what does not depend on the argument types.

    Raises:
        KernelError: the kernel uses something that the CPU cannot run.
    """

    def __init__(self, function: FunctionType, options: Options) -> None:
        self.options = options
        self.code = translate_names(function, Devices())
        source = self.code.source
        for node in ast.walk(ast.Module(self.code.body, [])):
            if isinstance(node, ast.Return) and not _is_none(node.value):
                raise source.refusal(node, "a kernel that returns a value", "write it to an array that the kernel gets")
        changed = assigned_names(self.code.body)
        self.params = tuple(f"{name}__arg" if name in changed else name for name in source.params)
        copies = [assign(name, load(f"{name}__arg"), source.tree) for name in source.params if name in changed]
        self.body: list[ast.stmt] = [*copies, *self.code.body]
        self._namespace: dict[str, Any] | None = None

    @property
    def namespace(self) -> dict[str, Any]:
        """What the global names of the generated code stand for."""
        if self._namespace is None:
            self._namespace = {**_with_devices(self.code, self.options), **_HELPERS}
        return self._namespace

    def emit(self, argtypes: TypeMap, *, split: bool = True) -> tuple[BlockCode, VariableTypes]:
        """The loops over the grid, and the types of the variables in them."""
        variable_types = VariableTypes(argtypes, lambda: self._infer(argtypes))
        body = self._counted_up(variable_types)

        def analyse(statements: list[ast.stmt]) -> Analysis:
            return Analysis(statements, self.params, self.code.namespace, variable_types)

        flat_body, flat = flatten(body)
        if flat:
            code = emit_blocks(analyse(flat_body), self.code.local_arrays, flat=flat, split=split)
            if not code.varying_slots:  # a slot array is as long as a block at most
                return code, variable_types
        return emit_blocks(analyse(body), self.code.local_arrays, split=split), variable_types

    def _counted_up(self, variable_types: VariableTypes) -> list[ast.stmt]:
        body = split_shapes(copy.deepcopy(self.body), variable_types.params)
        if not any(isinstance(statement, ast.While) for statement in body):
            return body
        return count_up(copy.deepcopy(body), Analysis(body, self.params, self.code.namespace, variable_types))

    def _infer(self, argtypes: TypeMap) -> TypeMap:
        """The types of all variables, from the code of one thread."""
        names = [*STATE, LINEAR, *self.params]
        function = self.define(f"{self.code.source.function.__name__}_thread", names, copy.deepcopy(self.body))
        kinds = tuple(types.int64 for _ in (*STATE, LINEAR)) + tuple(argtypes[name] for name in self.params)
        return infer_types(function, kinds)

    def launch_body(self, argtypes: TypeMap) -> list[ast.stmt]:
        """The whole body of the function that runs a launch."""
        code, variable_types = self.emit(argtypes)
        kinds = {name: variable_types.of(name) for name in code.varying_slots} if argtypes else {}
        if not all(kind is None or isinstance(kind, (types.Number, types.Boolean)) for kind in kinds.values()):
            # A view or a tuple would have to be kept for each thread. Not cutting the kernel is simpler than storing it.
            code, _ = self.emit(argtypes, split=False)
        made: list[ast.stmt] = []
        for name in code.varying_slots:
            self.namespace[f"_k_dtype_{name}"] = slot_dtype(kinds.get(name))
            made += statements(f"{name}__s = _k_stack_array({MAX_BLOCK}, _k_dtype_{name})", self.code.source.tree)
        for name in code.undefined:
            self.namespace[f"_k_type_{name}"] = slot_dtype(variable_types.of(name)).type
            made += statements(f"{name}__u = _k_type_{name}(0)", self.code.source.tree)
        return made + code.body

    def define(self, name: str, params: Iterable[str], body: list[ast.stmt]) -> FunctionType:
        """A Python function made of the statements."""
        source = self.code.source
        return define_function(name, params, body, self.namespace, source.filename, source.tree, source.function.__module__)

    def compile(self, argtypes: TypeMap) -> tuple[Any, str]:
        """The dispatcher of the launch function, to be compiled for these types, and its source."""
        body = self.launch_body(argtypes)
        name = self.code.source.function.__name__
        function = self.define(name, [*SIZES, *self.params], body)
        return self.options.njit(function), self.text(body)

    def text(self, body: list[ast.stmt]) -> str:
        """The launch function as Python source."""
        params = ", ".join([*SIZES, *self.params])
        lines = unparse(body).splitlines() or ["pass"]
        return f"def {self.code.source.function.__name__}({params}):\n" + "".join(f"    {line}\n" for line in lines)


def split_shapes(body: list[ast.stmt], argtypes: TypeMap) -> list[ast.stmt]:
    """Writes `h, w = a.shape` at the top of a kernel as two assignments, of which the analyses know what they are."""
    done: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.Assign(
                targets=[ast.Tuple(elts=[*targets])],
                value=ast.Attribute(value=ast.Name(id=array), attr="shape") as shape,
            ) if _has_ndim(argtypes, array, len(targets)) and all(isinstance(target, ast.Name) for target in targets):
                for axis, target in enumerate(targets):
                    element = ast.Subscript(copy.deepcopy(shape), ast.Constant(axis), ast.Load())
                    done.append(place(ast.Assign([target], element), statement))
            case _:
                done.append(statement)
    return done


def _has_ndim(argtypes: TypeMap, array: str, ndim: int) -> bool:
    """Whether the parameter is an array of that many dimensions; taken to be so where types are not known."""
    kind = argtypes.get(array)
    return not argtypes or (isinstance(kind, types.Array) and kind.ndim == ndim)


def slot_dtype(kind: types.Type | None) -> np.dtype[Any]:
    """The dtype that keeps a number of the type; any will do for a variable without a type, which Numba has found unused."""
    if not isinstance(kind, (types.Number, types.Boolean)):
        return np.dtype(np.int8)
    return np.dtype(np.bool_) if isinstance(kind, types.Boolean) else np.dtype(as_dtype(kind))


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _with_devices(code: ThreadCode, options: Options) -> dict[str, Any]:
    """The namespace of a function, its device functions compiled."""
    return {
        name: _compile_device(value, options) if isinstance(value, DeviceFunction) else value
        for name, value in code.namespace.items()
    }


# Device functions are often shared by many kernels, and compiling one costs 0.05 to 0.2 s.
_compiled_devices: WeakKeyDictionary[FunctionType, dict[Options, Any]] = WeakKeyDictionary()


def _compile_device(device: DeviceFunction, options: Options) -> Any:
    compiled = _compiled_devices.setdefault(device.function, {})
    if options not in compiled:
        code = cast(ThreadCode, device.code)  # set by now: the whole kernel has been translated
        source = code.source
        body = code.body
        if LINEAR in read_names(body):
            body = statements(f"{LINEAR} = {NONNEG}({LINEAR_TEXT})", source.tree) + body
        params = [*(STATE if code.uses_state else ()), *source.params]
        namespace = {**_with_devices(code, options), **_HELPERS}
        name = source.function.__name__
        function = define_function(name, params, body, namespace, source.filename, source.tree, source.function.__module__)
        compiled[options] = options.njit(function, forceinline=True)
    return compiled[options]


def define_function(
    name: str,
    params: Iterable[str],
    body: list[ast.stmt],
    namespace: Mapping[str, Any],
    filename: str,
    at: ast.AST,
    module: str,
) -> FunctionType:
    """A Python function made of statements; its lines are those of the user's file."""
    arguments = ast.arguments([], [ast.arg(param) for param in params], None, [], [], None, [])
    tree = ast.FunctionDef(name, arguments, body or [ast.Pass()], [], None)
    if sys.version_info >= (3, 12):
        tree.type_params = []
    place(tree, at)
    scope: dict[str, Any] = {**namespace, "__name__": module}
    exec(compile(ast.Module([tree], []), filename, "exec"), scope)  # noqa: S102  # the generated function
    function: FunctionType = scope[name]
    return function
