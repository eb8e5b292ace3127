"""Lowers CUDA's operations to plain names: the second stage of the compiler.

The result is the code of one thread in plain Python: thread indices are variables, operations that
involve no other thread are functions, barriers and collectives are statements of their own.
Unsupported constructs raise `KernelError`.
"""

import ast
import enum
import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, cast

import numpy as np
from numba.core import types

from synknumba._errors import GENERATED, KernelError
from synknumba.simt._library import words
from synknumba.simt._library.intrinsics import Group, must_be_group, stack_array
from synknumba.simt._library.readonly_records import as_protected
from synknumba.simt._library.synchronisation import BARRIER_PATHS, COLLECTIVES, BarrierKind
from synknumba.simt._lower import arrays
from synknumba.simt._lower.constant_parameters import (
    MAX_VARIANTS,
    FixedParameters,
    Rest,
    arguments,
    called_function,
    fix,
)
from synknumba.simt._lower.cuda_overloads import OverloadedFunction, overloaded_for_cuda
from synknumba.simt._lower.declared_signatures import Conversions
from synknumba.simt._lower.desugar import desugared
from synknumba.simt._lower.hoist import Hoister
from synknumba.simt._lower.inlining import Inliner
from synknumba.simt._lower.signatures import as_declared, declared_signatures
from synknumba.simt._lower.sync import arguments_of, barrier, collective_call
from synknumba.simt._lower.thread_code import NOTHING, DeviceFunction, ThreadCode
from synknumba.simt._maths import operations as ops
from synknumba.simt._maths.math import MATH
from synknumba.simt._source.numba_cuda import MISSING, CudaPath
from synknumba.simt._source.reads import is_njit_function
from synknumba.simt._source.scope import (
    NUMBERS,
    WIDTH_DEPENDENT,
    Locals,
    Scope,
    indices_as_int32,
    misspelt,
)
from synknumba.simt._source.source import CALLED_BUILTINS, read_source
from synknumba.simt._source.syntax import (
    assign,
    expression,
    has_starred,
    load,
    nodes_of,
    one_or_tuple,
    place,
    read_names,
    statements,
)
from synknumba.simt._source.written import IN_KERNELS, Source, has_rest, parameters


class DeviceFunctions:
    """The device functions of one kernel, translated once per combination of signatures and fixed
    parameters.

    Attributes:
        is_for_gpus: whether the kernel is a user's, which GPUs run too. Those that synknumba makes
            of functions of rows may call what Numba compiles for cores alone.
        refused: the latest error for a function that Numba compiles untranslated, and that must not
            run; None if there is none.

    Args:
        rewrite: changes the source of the kernel and of each device function before it is lowered.
    """

    def __init__(self, rewrite: Callable[[Source], Source] = lambda source: source) -> None:
        self.rewrite = rewrite
        self.is_for_gpus = True
        self.refused: KernelError | None = None
        self._variants: dict[FunctionType, dict[Any, DeviceFunction | None]] = {}
        self._overloaded: dict[Any, OverloadedFunction] = {}
        # being translated, each called by the one before
        self._under_way: list[DeviceFunction] = []
        self.parameters = FixedParameters()

    def _all(self) -> Iterator[DeviceFunction]:
        return filter(None, chain.from_iterable(map(dict.values, self._variants.values())))

    def recursive(self) -> list[DeviceFunction]:
        """Returns the functions that call themselves, directly or through others."""
        return [device for device in self._all() if device.is_recursive]

    def statements(self) -> list[ast.stmt]:
        """Returns the statements of all functions."""
        codes = filter(None, (device.code for device in self._all()))
        return [statement for code in codes for statement in code.body]

    def may_recur(self) -> bool:
        """Returns whether the kernel calls recursive functions, or overloads, which may call
        some.
        """
        return bool(self._overloaded or self.recursive())

    def overloaded(self, function: Any) -> OverloadedFunction:
        """Returns the object that stands for a function with overloads for GPUs; the same one
        for the same function.
        """
        return self._overloaded.setdefault(function, OverloadedFunction(function))

    def translate(self, device: DeviceFunction, *, optional: bool = False) -> DeviceFunction | None:
        """Translates a device function, or returns its earlier translation.

        Args:
            device: the function, not translated yet.
            optional: whether Numba can compile it untranslated; a failed translation then returns
                None.
        """
        variants = self._variants.setdefault(device.function, {})
        if device.variant in variants:
            return variants[device.variant]
        if len(variants) == MAX_VARIANTS:
            source = read_source(device.function)
            construct = (
                f"a device function that is called with more than {MAX_VARIANTS} different "
                f"shapes, dtypes or functions"
            )
            raise source.refusal(source.tree, construct, "pass fewer of them as arguments")
        variants[device.variant] = device
        self._under_way.append(device)
        try:
            device.code = translate_names(device.function, self, device)
        except KernelError as error:
            if not optional or error is self.refused:
                raise
            variants[device.variant] = None
        finally:
            self._under_way.pop()
        return variants[device.variant]

    def recurs(self, device: DeviceFunction) -> None:
        """Notes that a function whose translation is under way is called by the latest one: all
        from it on call themselves.
        """
        for caller in self._under_way[self._under_way.index(device) :]:
            caller.is_recursive = True


def translate_names(
    function: FunctionType, devices: DeviceFunctions, device: DeviceFunction | None = None
) -> ThreadCode:
    """Returns the code of one thread of a kernel, or of a device function if `device`, its entry
    in `devices`, is given.
    """
    source = read_source(function)
    if device is None:
        is_generated = function.__code__.co_filename.startswith(GENERATED)
        is_ours = str(function.__module__).startswith("synknumba.")
        devices.is_for_gpus = not is_generated and not is_ours
    else:
        source = fix(source, device.fixed)
    source = devices.rewrite(desugared(source))
    code = ThreadCode(source)
    code.body = _Translator(code, Scope(source), devices).block(source.tree.body)
    if device is None:
        return code
    if device.declared:
        Conversions(code, device.declared).apply()
    if device.is_recursive:
        code.uses_state = True  # its recursive calls were translated first, and pass the state
        if code.must_be_inlined:
            construct = "a recursive device function with a barrier or shared memory"
            raise source.refusal(source.tree, construct, "write it as a loop")
        code.body = [*_stack_check(source), *code.body]
    return code


def _stack_check(source: Source) -> list[ast.stmt]:
    """Returns a statement that raises RecursionError if a recursive device function has no stack
    left.
    """
    reason = (
        f"{source.at(source.tree)} calls itself too often for the stack of a core, of which a GPU "
        "has less; write it as a loop"
    )
    return statements(f"if _k_stack_ends():\n    raise _k_RecursionError({reason!r})", source.tree)


_NUMBERS = (bool, int, float, complex, np.number, np.bool_)

_GENERATORS = (random.Random, np.random.RandomState)

# Module of numba-cuda's types of 8 bits and their functions, which CUDA C++ compiles; it has no
# public one.
_FP8: Final = "numba.cuda._internal.cuda_fp8"


def _is_of_records(value: Any) -> bool:
    """Returns whether this is an array of records, which is a constant where it is a global
    value.
    """
    match value:
        case np.ndarray(dtype=np.dtype(names=tuple())):
            return True
    return False


def _remedy_on_gpus(value: Any, *, of_rows: bool) -> str | None:
    """Returns what to write instead of a function that Numba compiles for cores alone; None for all
    others.

    Functions of rows may call them, but for random numbers: these would ignore the seed of the
    call. `tests/unit/simt/test_refusals.py` asks numba.cuda. Allocation of arrays and reductions
    are not among them: numba-cuda compiles some, with NUMBA_CUDA_ENABLE_NRT.
    """
    home = str(getattr(value, "__module__", ""))
    if home.startswith("numpy.random") or isinstance(getattr(value, "__self__", None), _GENERATORS):
        way_out = "use synk.random"
        if of_rows:
            return way_out
        return f"{way_out}, or cuda.random with states of simt.random_states(n, seed)"
    if of_rows:
        return None
    if home == "numpy.linalg" or any(value is function for function in (np.dot, np.vdot)):
        return "write it as loops"
    return None


# Operations that are statements of their own.
_STATEMENTS: Final = frozenset({*words.FENCES, *BARRIER_PATHS})

LANE = f"{words.LINEAR} & {words.WARP_SIZE - 1}"


class _Translator(Hoister):
    """Rewrites a function's tree in place."""

    def __init__(self, code: ThreadCode, scope: Scope, devices: DeviceFunctions) -> None:
        super().__init__(code.source)
        self.code, self.scope, self.devices = code, scope, devices
        tree = code.source.tree
        self.variables = Locals(code.source, scope)
        self.inliner = Inliner(code, self.variables)
        self._groups: set[str] = set()
        # a variable may be assigned from another one
        while (groups := self._grid_groups(tree)) != self._groups:
            self._groups = groups
        self.code.names_grid = any(map(self._is_grid, nodes_of(ast.Call, tree)))

    def _grid_groups(self, tree: ast.FunctionDef) -> set[str]:
        """Returns the variables that hold the group of the whole grid, as after
        `g = cuda.cg.this_grid()`.
        """
        groups = set()
        for node in nodes_of(ast.Assign, tree):
            match node:
                case ast.Assign([ast.Name(name), *_], value) if self._is_grid(value):
                    groups.add(name)
        return groups

    def _is_grid(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(name):
                return name in self._groups
            case ast.Call(function):
                return self.scope.path_of(function) == "cg.this_grid"
        return False

    def _is_sync(self, node: ast.Call) -> bool:
        """Returns whether a call waits for the grid: of the `sync` of a value, which may be an
        argument or a result.
        """
        match node:
            case ast.Call(func=ast.Attribute(attr="sync") as function, args=[], keywords=[]):
                return self.scope.resolve(function) is MISSING
        return False

    def _grid_group(self, node: ast.expr) -> ast.expr:
        """Returns the group of the whole grid, as a value."""
        return self._bind_at(node, "grid_group", Group.GRID)

    def _is_grid_group(self, node: ast.expr) -> bool:
        match node:
            case ast.Name(name):
                return self.code.namespace.get(name) is Group.GRID
        return False

    # ---- statements

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        nothing = ast.copy_location(ast.Pass(), node)
        match node.value:
            case ast.Call() as call:
                kind = self._barrier_of(call)
                if kind is not None:
                    self.code.must_be_inlined = True
                    return barrier(kind, node)
                if self.scope.path_of(call.func) in {*words.FENCES, "cg.this_grid"}:
                    return nothing
            case value:
                path = self.scope.path_of(value)
                if path in _STATEMENTS:
                    reason = f"cuda.{path} without () does nothing; call it: cuda.{path}()"
                    raise self.source.error(node, reason)
        node.value = self.visit(node.value)
        match node.value:
            case ast.Name() | ast.Tuple() | ast.Constant():  # done before
                return nothing
        return node

    def _barrier_of(self, call: ast.Call) -> BarrierKind | None:
        """Returns the kind of barrier that a call is; None for any other call."""
        if self._is_sync(call):
            group = self.visit(cast(ast.Attribute, call.func).value)
            if not self._is_grid_group(group):
                # its typing fails for a value that is no group
                check = self.code.call("must_be_group", must_be_group, group)
                self.before.append(place(ast.Expr(check), group))
            return "grid"
        return BARRIER_PATHS.get(self.scope.path_of(call.func) or "")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | list[ast.stmt]:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self.visit_Assign(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(function) as value) if (
                self.variables.is_assigned_once(name)
            ):
                path = self.scope.path_of(function)
                if path in arrays.ARRAY_PATHS:
                    return self._array(value, path, name)
        match node.targets:
            case [ast.Name(name), *_]:
                if name in self.scope.aliases or self._is_grid(node.value):
                    return ast.copy_location(ast.Pass(), node)
        node.targets, node.value = self.assigned(node.targets, self.visit(node.value))
        return _split_tuple(node)

    def _array(self, call: ast.Call, path: str, name: str) -> ast.stmt:
        """Declares a shared or local array; the variable must have no other assignment."""
        shape_node, dtype_node = arrays.array_arguments(path, call, self.scope)
        shape = arrays.shape_of(shape_node, self.scope, dynamic=path == "shared.array")
        self._check_fp8(dtype_node, self.scope.resolve(dtype_node))
        constant = arrays.known_dtype(dtype_node, self.scope)
        if constant is None:
            dtype = cast(ast.expr, self.visit(dtype_node))
        else:
            dtype = self.code.bind("dtype", constant)
        arrays.check_size(path, shape, constant, call, self.scope)
        if path == "shared.array":
            self.variables.check_known_at_launch(dtype, call)
            self.code.must_be_inlined = True
            self.code.shared_arrays[name] = arrays.SharedArray(shape, dtype, call)
            return place(ast.Pass(), call)
        self.code.local_arrays.add(name)
        dims = one_or_tuple([ast.Constant(dim) for dim in shape], ast.Load())
        return assign(name, self.code.call("stack_array", stack_array, dims, dtype), call)

    # ---- names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._groups:
            return self._grid_group(node)
        is_variable = node.id in self.scope.locals and node.id not in self.scope.aliases
        if is_variable or not isinstance(node.ctx, ast.Load):
            return node
        value = self.scope.resolve(node)
        replaced = self._replaced(node, value)
        if replaced is not None:
            return replaced
        if node.id in self.source.scope:
            if node.id in CALLED_BUILTINS:
                return self._bind_at(node, f"global_{node.id}", value)
            self.code.namespace[node.id] = value
        if _is_of_records(value):
            return self._protected(node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        value = self.scope.resolve(node)
        replaced = self._replaced(node, value)
        if replaced is not None:
            return replaced
        if _is_of_records(value):
            return self._protected(node)
        match self.scope.resolve(node.value):
            # of cuda.random, whose members are ordinary functions
            case CudaPath() if value is not MISSING:
                return self._bind_at(node, node.attr, value)
            case type() as owner if isinstance(value, _NUMBERS):
                # Numba cannot read the attributes of classes, but those of enums and its own types
                if not issubclass(owner, enum.Enum | np.generic):
                    return self._bind_at(node, node.attr, value)
        return self.generic_visit(node)  # type: ignore[return-value]

    def _replaced(self, node: ast.expr, value: Any) -> ast.expr | None:
        """Returns the replacement of a `numba.cuda` member, a device function or a `math`
        function; None for other values.
        """
        if isinstance(value, CudaPath):
            return self._operation(node, value.path)
        self._check_fp8(node, value)
        device = self._device(value)
        if device is not None:
            return self._bind_at(node, device.name, device)
        overloaded = overloaded_for_cuda(value)
        if overloaded is not None:
            name = overloaded.__name__
            construct = f"{name}, which is overloaded for the target 'cuda' only, as a value"
            raise self.source.refusal(node, construct, "call it")
        match value:
            case BuiltinFunctionType(__name__=name) if value in MATH:
                return self._bind_at(node, f"math_{name}", MATH[value])
            case tuple() if any(map(called_function, value)):
                parts = tuple(self._device(part) or part for part in value)
                return self._bind_at(node, "functions", parts)
        return None

    def _check_fp8(self, node: ast.expr, value: Any) -> None:
        """Raises KernelError for a type, function or constant of fp8."""
        if getattr(value, "__module__", None) == _FP8:
            raise self.source.refusal(
                node, f"{ast.unparse(node)}, of fp8,", "compute in float32, or in cuda.bf16"
            )

    def _operation(self, node: ast.expr, path: str) -> ast.expr:
        """Returns the replacement of a member of `numba.cuda`: thread state, constant, type or
        function.
        """
        if path in words.INDICES:
            return self._state(node, words.INDICES[path])
        if path == "laneid":
            return self._state(node, LANE)
        if path == "warpsize":
            return ast.copy_location(ast.Constant(words.WARP_SIZE), node)
        value = ops.FUNCTIONS.get(path)
        if value is None:
            member = CudaPath(path).member()
            if isinstance(member, (types.Type, int, float)):
                value = member
        if value is not None:
            return self._bind_at(node, path.replace(".", "_"), value)
        if path in {"grid", "gridsize"}:
            raise self.source.error(
                node, f"cuda.{path} without () is a function; call it: cuda.{path}(1)"
            )
        if not path:
            construct = "the module numba.cuda as a value"
            raise self.source.refusal(node, construct, ops.way_out(""))
        remedy = ops.way_out(path)
        if remedy == ops.way_out(""):
            mistake = misspelt(path)
            if mistake:
                raise self.source.error(node, mistake)
        raise self.source.refusal(node, f"cuda.{path}", remedy)

    # ---- calls

    def visit_Call(self, node: ast.Call) -> ast.expr:
        value = self.scope.resolve(node.func)
        if isinstance(value, CudaPath):
            return self._cuda_call(node, value.path)
        remedy = _remedy_on_gpus(value, of_rows=not self.devices.is_for_gpus)
        if remedy is not None:
            construct = f"{ast.unparse(node.func)}()"
            self.devices.refused = self.source.refusal(node, construct, remedy, IN_KERNELS)
            raise self.devices.refused
        if overloaded_for_cuda(value) is not None:
            node.func = self._bind_at(node, value.__name__, self.devices.overloaded(value))
            node = self._plain_call(node)
            node.args = [*self._own_state(node), *node.args]
            return node
        self._check_draw(node, value)
        function = called_function(value)
        if function is not None:
            fixed = self.devices.parameters.in_call(node, function, self.scope)
            device = self._device(value, fixed)
            if device is not None:
                return self._device_call(node, device)
        is_view = value is MISSING and getattr(node.func, "attr", None) == "view"
        node = self._plain_call(node)
        return self._protected(node) if is_view else node

    def _own_state(self, at: ast.AST) -> list[ast.expr]:
        """Returns the arguments that pass the thread's place."""
        self.code.uses_state = True
        return [place(load(name), at) for name in words.STATE]

    def _device_call(self, node: ast.Call, device: DeviceFunction) -> ast.expr:
        args = self._positional(node, device)
        if len(device.declared) > 1:
            args = indices_as_int32(args, self.scope, self._int32)
        args = self.in_order(args)
        code = device.code
        if code is None:
            self.devices.recurs(device)
        else:
            self.code.names_grid |= code.names_grid
            if code.must_be_inlined:
                statements, value = self.inliner.inline(code, args, node)
                self.before += statements
                return value
        if device.takes_rest:
            args[-1] = ast.copy_location(ast.Starred(args[-1], ast.Load()), node)
        if code is None or code.uses_state:
            args = self._own_state(node) + args
        return place(self.code.call(device.name, device, *args), node)

    def _check_draw(self, node: ast.Call, value: Any) -> None:
        """Raises KernelError for a call of a function of `synk.random` that lacks an argument,
        as the draw.
        """
        if getattr(value, "__module__", "") != "synknumba.random" or has_starred(node.args):
            return
        named = {str(keyword.arg): keyword.value for keyword in node.keywords}
        try:
            inspect.signature(value).bind(*node.args, **named)
        except TypeError as error:
            parameters = inspect.signature(value).parameters.values()
            params = ", ".join(param.name for param in parameters if param.default is param.empty)
            call = f"{ast.unparse(node.func)}({params})"
            if "draw" in params:
                call += ", where draw counts the numbers of one index from 0"
            raise self.source.error(node, f"{error}; write {call}") from None

    def _plain_call(self, node: ast.Call) -> ast.Call:
        named = [keyword.value for keyword in node.keywords]
        node.func, *values = self.in_order([node.func, *node.args, *named])
        node.args = values[: len(node.args)]
        for keyword, value in zip(node.keywords, values[len(node.args) :], strict=True):
            keyword.value = value
        return node

    def _positional(self, node: ast.Call, device: DeviceFunction) -> list[ast.expr]:
        """Returns the arguments of a call by position, defaults included, without those of fixed
        parameters.
        """
        function = device.function
        names, count = parameters(function), function.__code__.co_argcount
        by_parameter = arguments(node, function)
        by_name = [keyword.arg for keyword in node.keywords]
        is_wrong = set(by_parameter) != set(names)
        is_wrong |= not set(by_name).issubset(names[min(len(node.args), count) : count])
        if not has_rest(function):
            is_wrong |= len(node.args) > count
        if is_wrong:
            got = f"{len(node.args)} by position, {by_name} by name"
            construct = f"a call of {function.__name__}({', '.join(names)}) with {got}"
            raise self.source.refusal(node, construct, "pass one argument per parameter")
        passed = [by_parameter[name] for name in names if name not in device.fixed]
        args = [argument.node or self._default(argument.default, node) for argument in passed]
        if any(isinstance(value, Rest) for value in device.fixed.values()):
            args += node.args[count:]
        return args

    def _default(self, value: Any, at: ast.AST) -> ast.expr:
        node: ast.expr
        match value:
            case None | bool() | int() | float() | complex() | str():
                node = ast.Constant(value)
            case _:
                node = self.code.bind("default", value)
        return place(node, at)

    def _cuda_call(self, node: ast.Call, path: str) -> ast.expr:
        if path in {"grid", "gridsize"}:
            return self._grid(node, path)
        if path in COLLECTIVES:
            self.code.must_be_inlined = self.code.uses_state = True
            args = self.in_order(arguments_of(node, path, self.source))
            statements, value = collective_call(path, args, node, self.fresh)
            self.before += statements
            return value
        match path, node:
            case "const.array_like", ast.Call(_, [array], []):
                return cast(ast.expr, self.visit(array))
        if path == "lanemask_lt":
            lane = self._state(node, f"(1 << ({LANE})) - 1")
            return place(self.code.call("uint32", types.uint32, lane), node)
        if path in arrays.ARRAY_PATHS:
            name = self.fresh("array")
            self.before.append(self._array(node, path, name))
            return ast.copy_location(load(name), node)
        if path in _STATEMENTS:
            raise self.source.refusal(
                node, f"cuda.{path}() inside this expression", "make it a statement of its own"
            )
        if path == "cg.this_grid":
            return self._grid_group(node)
        if path in NUMBERS:
            raise self.source.refusal(
                node, f"a call of cuda.{path}", "it is a value: leave the () out"
            )
        if path in ops.ATOMIC_ARGUMENTS:
            names, got = ops.ATOMIC_ARGUMENTS[path], len(node.args) + len(node.keywords)
            if got != len(names) and not has_starred(node.args):
                count = "1 argument" if got == 1 else f"{got} arguments"
                reason = f"cuda.{path} takes {', '.join(names)}; got {count}"
                raise self.source.error(node, reason)
        if path in WIDTH_DEPENDENT:
            node.args = indices_as_int32(node.args, self.scope, self._int32)
        return self._plain_call(node)

    def _int32(self, node: ast.expr) -> ast.expr:
        return place(self.code.call("as_int32", types.int32, node), node)

    def _grid(self, node: ast.Call, path: str) -> ast.expr:
        ndim = MISSING
        if len(node.args) == 1:
            ndim = arrays.constant(node.args[0], self.scope)
        if ndim not in {1, 2, 3}:
            construct = f"cuda.{path}() with anything but 1, 2 or 3"
            raise self.source.refusal(
                node, construct, "pass the number of dimensions as a constant"
            )
        parts = []
        for axis in words.AXES[:ndim]:
            text = f"{words.BLOCK_SIZE[axis]} * {words.GRID_SIZE[axis]}"
            if path == "grid":
                text = f"{words.BLOCK[axis]} * {words.BLOCK_SIZE[axis]} + {words.THREAD[axis]}"
            parts.append(self._state(node, text))
        return place(one_or_tuple(parts, ast.Load()), node)

    def _state(self, node: ast.expr, text: str) -> ast.expr:
        self.code.uses_state = True
        return expression(text, node)

    # ---- functions and constants

    def _device(self, value: Any, fixed: Mapping[str, Any] = NOTHING) -> DeviceFunction | None:
        function = called_function(value)
        if function is None:
            return None
        names = parameters(function)
        declared = declared_signatures(value)
        fixed = {
            name: as_declared(value, declared, names.index(name)) for name, value in fixed.items()
        }
        declared = tuple(signature.without(map(names.index, fixed)) for signature in declared)
        # An njit function is translated too, since on a GPU it follows CUDA's rules: no
        # ZeroDivisionError, products and sums contracted. Without CUDA names it can be called
        # untranslated if that fails.
        optional = is_njit_function(value) and not self.scope.mentions_cuda(function)
        return self.devices.translate(DeviceFunction(function, declared, fixed), optional=optional)

    def _protected(self, node: ast.expr) -> ast.expr:
        """Returns an array whose records are only read if the array is."""
        return place(self.code.call("as_protected", as_protected, node), node)

    def _bind_at(self, node: ast.expr, word: str, value: Any) -> ast.expr:
        return ast.copy_location(self.code.bind(word, value), node)


def _split_tuple(node: ast.Assign) -> ast.stmt | list[ast.stmt]:
    """Splits `x, y = a, b` if the right side reads no target: the analyses handle single
    assignments only.
    """
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if len({*names}) != len(targets) or len(targets) != len(values):
                return node
            if read_names(values).isdisjoint(names) and not has_starred(values):
                return [assign(name, part, node) for name, part in zip(names, values, strict=True)]
    return node
