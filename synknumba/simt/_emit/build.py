"""Build of the launch function: assembles the loops over the grid and their storage, and hands
them to Numba.
"""

import ast
import functools
import math
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np
from numba.core import types
from numba.np.numpy_support import from_dtype

from synknumba._errors import KernelError
from synknumba.simt._analysis.bounds import Guards, inner_axis
from synknumba.simt._analysis.buffer_swaps import other
from synknumba.simt._analysis.flat_grid import LANES, flatten, may_wait, regroup
from synknumba.simt._analysis.loops import count_apart, count_up, return_early
from synknumba.simt._analysis.namespace import is_one_of
from synknumba.simt._analysis.team import BLOCKS, THREADS, Team
from synknumba.simt._analysis.types import VariableTypes, infer_types, unified_type
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._analysis.variables import with_own_names
from synknumba.simt._emit.collect import ACTIVE
from synknumba.simt._emit.device_functions import with_devices
from synknumba.simt._emit.emit import (
    MIN_THREADS,
    BlockCode,
    block_kind,
    emit_blocks,
    has_many_threads,
)
from synknumba.simt._emit.error_location import WHERE, note_places
from synknumba.simt._emit.generated import define_function
from synknumba.simt._emit.masks import Divergence
from synknumba.simt._emit.options import Options
from synknumba.simt._emit.region import MASK, Block, Style
from synknumba.simt._emit.storage import (
    SMEM,
    LaunchStorage,
    is_plain,
    local_array_calls,
    slot_dtype,
)
from synknumba.simt._library.intrinsics import no_result
from synknumba.simt._library.runtime import HELPERS
from synknumba.simt._library.slots import itemsize, no_value_of
from synknumba.simt._library.typing_stubs import TYPING_STUBS
from synknumba.simt._library.words import AXES, BLOCK_SIZE, GRID_SIZE, LINEAR, SIZES, STATE
from synknumba.simt._lower.lowering import DeviceFunctions, translate_names
from synknumba.simt._lower.sync import waits_for
from synknumba.simt._lower.thread_code import DeviceFunction, ThreadCode
from synknumba.simt._machine.codegen import Launch, make_device
from synknumba.simt._source.syntax import (
    all_copied,
    assign,
    assigned_names,
    call_name,
    copied,
    load,
    nodes_of,
    place,
    read_names,
    statements,
    unparse,
    walk,
)
from synknumba.simt._source.written import IN_KERNELS

TypeMap = Mapping[str, types.Type]


class _Returns(ast.NodeTransformer):
    """Takes the values out of a kernel's `return` statements: `return f(x)`, of a function
    without a result, becomes two.
    """

    def __init__(self, code: ThreadCode) -> None:
        self._code = code

    def visit_Return(self, node: ast.Return) -> ast.stmt | list[ast.stmt]:
        plain = ast.copy_location(ast.Return(None), node)
        match node.value:
            case None | ast.Constant(None):
                return plain
            case ast.Call(ast.Name(name)) as called:
                if isinstance(self._code.namespace.get(name), DeviceFunction):
                    checked = self._code.call("no_result", no_result, called)
                    return [place(ast.Expr(checked), node), plain]
        raise self._code.source.refusal(
            node, "a kernel that returns a value", "write it to an array argument", IN_KERNELS
        )


class KernelProgram:
    """A translated kernel, before specialisation to argument types.

    Attributes:
        options: compilation options.
        devices: the device functions that it calls.
        code: the kernel's code for one thread.
        params: parameters of the kernel in the launch function, named `v__arg` where the kernel
            assigns to `v`.
        body: statements of one thread, with variables renamed by `with_own_names`.
        is_cooperative: whether the kernel synchronises the whole grid.
        names_grid: whether the kernel asks for the group of the whole grid.

    Raises:
        KernelError: the kernel uses a construct that the CPU cannot run.
    """

    def __init__(self, function: FunctionType, options: Options) -> None:
        self.options = options
        self.devices = DeviceFunctions()
        self.code = translate_names(function, self.devices)
        source = self.code.source
        self.code.body = _Returns(self.code).visit(ast.Module(self.code.body, [])).body
        changed = assigned_names(self.code.body)
        renamed = {name: f"{name}__arg" for name in source.params if name in changed}
        self.params = tuple(renamed.get(name, name) for name in source.params)
        copies = [assign(name, load(param), source.tree) for name, param in renamed.items()]
        self.body: list[ast.stmt] = with_own_names(
            [*copies, *self.code.body], self.code.local_arrays
        )
        self.is_cooperative = waits_for(self.body, "grid")
        self.names_grid = self.code.names_grid
        self._bodies: dict[Any, tuple[Any, list[ast.stmt]]] = {}

    @functools.cached_property
    def namespace(self) -> dict[str, Any]:
        """Globals of the generated code; reading it the first time creates the dispatchers of
        device functions.
        """
        return {**with_devices(self.code, self.options), **HELPERS}

    # ---- the loops over the grid

    def emit(
        self, argtypes: TypeMap, block: Block | None = None, *, split: bool = True
    ) -> tuple[BlockCode, VariableTypes]:
        """Generates the loops over the grid, and returns them with the types of the variables in
        them.

        Args:
            argtypes: types of the parameters; empty if the code is generated only for display.
            block: the only block size that the code will be launched with; None for any.
            split: whether a thread's loops may be interchanged with the loop over threads.
        """
        style = Style(split=split, reverse=self.options.reverse, block=block)
        if block_kind(block) != "gathered":
            return self._emit(argtypes, self.body, style)
        assert block is not None
        sizes, long = block[: len(AXES)], tuple(AXES[axis] for axis in block[len(AXES) :])
        if self.code.must_be_inlined:
            return self._emit(argtypes, self.body, replace(style, block=sizes))
        style = replace(style, block=_along(long[0]), long=long)
        _, flat = flatten(self.body)
        if len(flat) == len(AXES):
            code, variable_types = self._emit(argtypes, self.body, style)
            if not code.varying_slots:
                return code, variable_types
        style = replace(style, threads=_threads_of_grid(sizes))
        code, variable_types = self._emit(argtypes, regroup(self.body, sizes), style)
        if code.interchanges or math.prod(sizes) == 1:
            return code, variable_types
        # Indices within small blocks of several threads are remainders, which are not contiguous:
        # exp(x[i]) * w[t] took 2.7 times as long in blocks of 8.
        return self._emit(argtypes, self.body, replace(style, block=sizes, threads={}, long=()))

    def _emit(
        self, argtypes: TypeMap, body: list[ast.stmt], style: Style
    ) -> tuple[BlockCode, VariableTypes]:
        """Generates the loops over the grid around a thread's statements, which stay unchanged."""
        argument_types = {**argtypes, **self._shared_types()} if argtypes else {}
        body = all_copied(body)
        variable_types = VariableTypes(argument_types, lambda: self._infer(argtypes, body))
        body = self._counted(body, argument_types, variable_types)
        synchronised = self.code.must_be_inlined
        style = replace(style, cuts=synchronised)
        if style.long and may_wait([*body, *self.devices.statements()]):
            # Each thread runs to the end before the next one starts, in the order of the blocks.
            style = replace(style, split=False)
        if self.options.debug:
            style = replace(style, split=False, block=None)
        elif synchronised:
            style = replace(style, shared=self.code.shared_arrays)
        else:
            flat_body, flat = flatten(body)
            if flat:
                analysis = self._analyse(flat_body, variable_types)
                flat_style = replace(style, flat=flat)
                code = self._loops(analysis, flat_style)
                # a slot array holds one block at most, not a flattened axis
                if not code.varying_slots:
                    return code, variable_types
        analysis = self._analyse(all_copied(body), variable_types)
        return self._loops(analysis, style), variable_types

    def _loops(self, analysis: Analysis, style: Style) -> BlockCode:
        if style.threads:
            inner = inner_axis(analysis)
            if inner not in style.long:
                inner = style.long[0]
            style = replace(style, block=_along(inner), long=(inner,))
        divergence = Divergence(self.code.source, grid=self.is_cooperative)
        return emit_blocks(analysis, self.code.local_arrays, divergence, style)

    def _analyse(self, body: list[ast.stmt], variable_types: VariableTypes) -> Analysis:
        grid, fixed = self.is_cooperative, [*self.params]
        if not grid:
            fixed += self.code.shared_arrays
        analysis = Analysis(
            body, fixed, self.code.namespace, variable_types, grid=grid, checked=self.options.debug
        )
        if not grid:
            return analysis
        storage = LaunchStorage(Team(grid=True), {}, self.code.source.tree)
        storage.shared(self.code.shared_arrays)
        analysis.recomputed = {**storage.recompute, **analysis.recomputed}
        analysis.varying |= set(storage.recompute)
        return analysis

    def _counted(
        self, body: list[ast.stmt], argument_types: TypeMap, variable_types: VariableTypes
    ) -> list[ast.stmt]:
        """Normalises shapes, returns and loops to the forms that the analyses recognise."""
        body[:] = split_shapes(body, argument_types)
        match body:
            case [*_, ast.If()]:
                analysis = self._analyse(all_copied(body), variable_types)
                body[:] = return_early(body, analysis, Guards(analysis, ast.unparse))
        if any(isinstance(statement, ast.While) for statement in body):
            body[:] = count_up(body, self._analyse(all_copied(body), variable_types))
        if self.code.must_be_inlined:
            body[:] = count_apart(body, self._analyse(all_copied(body), variable_types))
        return body

    # ---- types

    def _shared_types(self) -> dict[str, types.Type]:
        array_types: dict[str, types.Type] = {}
        for name, array in self.code.shared_arrays.items():
            match array.dtype:
                case ast.Name(dtype):
                    element = self.code.namespace.get(dtype)
                case _:
                    continue
            if isinstance(element, np.dtype):
                element = from_dtype(element)
            if isinstance(element, types.Type):
                array_types[name] = types.Array(element, len(array.shape), "C")
        return array_types

    def shared_bytes(self, argtypes: TypeMap) -> int | None:
        """Returns the bytes of the static shared arrays of a block; None if a dtype is neither
        constant nor of an argument.
        """
        total, array_types = 0, self._shared_types()
        for name, array in self.code.shared_arrays.items():
            kind = array_types.get(name)
            match array.dtype:
                case ast.Attribute(ast.Name(argument), "dtype"):
                    kind = argtypes.get(argument)
            if not isinstance(kind, types.Array):
                return None
            total += math.prod(array.shape) * itemsize(kind.dtype)
        return total

    def _infer(self, argtypes: TypeMap, body: list[ast.stmt]) -> TypeMap:
        """Infers the types of all variables from the code of one thread."""
        storage = LaunchStorage(Team(), {}, self.code.source.tree)
        storage.shared(self.code.shared_arrays)
        names = [*STATE, LINEAR, SMEM, *self.params]
        namespace = {**self.namespace, **TYPING_STUBS}
        code = [*storage.reserve, *all_copied(body)]
        function = self.define(f"{self.code.source.tree.name}_thread", names, code, namespace)
        kinds = [argtypes.get(name, types.int64) for name in names]
        return infer_types(function, tuple(kinds))

    def type_of(self, name: str, argtypes: TypeMap) -> types.Type | None:
        """Returns the type of a local variable; None if it is unused, `types.unknown` if its
        types do not unify.
        """
        return unified_type(self._infer(argtypes, self.body), name)

    # ---- the launch

    def launch_body(self, argtypes: TypeMap, block: Block | None = None) -> list[ast.stmt]:
        """Returns the body of the launch function, specialised to a block size if one is given."""
        return self._launch(argtypes, block)[0]

    def _launch(self, argtypes: TypeMap, block: Block | None) -> tuple[list[ast.stmt], BlockCode]:
        """Returns the body of the launch function, and the loops that are in it."""
        code, variable_types = self.emit(argtypes, block)
        kinds: dict[str, types.Type | None] = dict.fromkeys(code.varying_slots)
        if argtypes:
            kinds = self._slot_types(code, variable_types)
        if not all(map(is_plain, kinds.values())) and not self.code.must_be_inlined:
            # A view or a tuple would need a slot for each thread. A kernel without barriers need
            # not be cut at all.
            code, _ = self.emit(argtypes, block, split=False)
            kinds = dict.fromkeys(code.varying_slots)
        tree = self.code.source.tree
        storage = LaunchStorage(code.team, self.namespace, tree)
        storage.shared(self.code.shared_arrays)
        second = {other(name): self.code.shared_arrays[name] for name in sorted(code.swapped)}
        storage.shared(second)
        local_arrays = local_array_calls(self.body, self.code.local_arrays)
        for name in code.varying_slots:
            if name in local_arrays:
                storage.local_array(name, local_arrays[name])
            else:
                storage.slots(name, kinds[name], padded=name in code.padded)
        for flags in sorted({MASK, ACTIVE} & read_names(code.body), reverse=True):
            storage.flags(flags)
        body = with_views_once(
            [*self._undefined(code, variable_types), *storage.reserve, *code.body], argtypes
        )
        first: list[ast.stmt] = []
        if code.style.threads:
            first += _constants(code.style.block, tree)
        if read_names(body) & {THREADS, BLOCKS}:
            first += code.team.sizes(tree)
        if self.devices.may_recur():
            first += statements("_k_stack_begins()", tree)
        return [*first, *body, *storage.release], code

    def _slot_types(
        self, code: BlockCode, variable_types: VariableTypes
    ) -> dict[str, types.Type | None]:
        names = [name for name in code.varying_slots if name not in self.code.local_arrays]
        kinds = {name: variable_types.of(name) for name in names}
        if self.code.must_be_inlined:
            for name, kind in kinds.items():
                if kind is types.unknown:
                    raise self._several_types(name)
        return kinds

    def refuse_several_types(self, argtypes: TypeMap) -> None:
        """Raises KernelError if a uniform variable has several types and lives across a barrier.

        Explains a typing error in terms of the user's code, since Numba's message refers to
        generated variables.
        """
        code, variable_types = self.emit(argtypes)
        for name in sorted(assigned_names(code.body)):
            variable = name.removesuffix("__u")
            if variable != name and variable_types.of(variable) is types.unknown:
                raise self._several_types(variable)

    def endless(self) -> KernelError | None:
        """Returns the error for a function that Numba compiles for ever other types; None if
        none calls itself.
        """
        recursive = self.devices.recursive()
        if not recursive:
            return None
        codes = [device.function.__code__ for device in recursive]
        functions = " or ".join(
            f"{code.co_name}() ({code.co_filename}:{code.co_firstlineno})" for code in codes
        )
        construct = (
            f"a recursion with other types at each depth, as of tuples that grow, of {functions}"
        )
        source, globals_ = self.code.source, self.code.namespace
        names = {name for name, value in globals_.items() if is_one_of(value, *recursive)}
        calls = (node for node in nodes_of(ast.Call, source.tree) if call_name(node) in names)
        at: ast.AST = next(calls, source.tree)
        way_out = "pass arguments of one type, or write a loop"
        return source.refusal(at, construct, way_out, IN_KERNELS)

    def _several_types(self, name: str) -> KernelError:
        construct = f"the variable {name!r}, which has several types and lives across a barrier,"
        first: ast.AST = self.code.source.tree
        for node in walk(self.body):
            match node:
                case ast.Name(variable, ast.Store()) if variable == name:
                    first = node
                    break
        return self.code.source.refusal(first, construct, "use a variable for each type")

    def _undefined(self, code: BlockCode, variable_types: VariableTypes) -> list[ast.stmt]:
        """Returns initial values for the uniform variables that may be read before assignment."""
        initial: list[ast.stmt] = []
        for name in code.undefined:
            kind = variable_types.of(name)
            if is_plain(kind):
                self.namespace[f"_k_type_{name}"] = slot_dtype(kind).type
                initial += statements(f"{name}__u = _k_type_{name}(0)", self.code.source.tree)
            elif kind is not types.unknown:
                self.namespace[f"_k_no_value_{name}"] = no_value_of(kind)
                initial += statements(f"{name}__u = _k_no_value_{name}()", self.code.source.tree)
        return initial

    # ---- the function

    def define(
        self,
        name: str,
        params: Iterable[str],
        body: list[ast.stmt],
        namespace: Mapping[str, Any] | None = None,
    ) -> FunctionType:
        """Makes a Python function of statements, with the kernel's globals by default."""
        if namespace is None:
            namespace = self.namespace
        return define_function(name, params, body, namespace, self.code.source)

    def compile(self, argtypes: TypeMap, block: Block | None = None) -> Launch:
        """Generates the launch function, for one block size or any.

        For one block size it calls a function that holds the body of the launch with constants, and
        LLVM puts the body in the place of the call. Block sizes for which the same code is emitted
        share that function, so that the kernel is emitted, typed and lowered for the first of them
        alone.
        """
        name, debug = self.code.source.tree.name, self.options.debug
        key = (*argtypes.values(), block and self._block_class(block))
        if key not in self._bodies or debug:
            body, code = self._launch(argtypes, block)
            if debug:
                body = [*_constants(block, self.code.source.tree), *note_places(body)]
            if block is None or debug or code.serves_any_block or code.style.threads:
                return Launch(
                    self.options.njit(self.define(name, self._launch_params, body)),
                    self.text(body),
                    any_block_size=code.serves_any_block,
                )
            # a shared array as long as the block may not have mattered
            same = (*argtypes.values(), self.text(body))
            if same not in self._bodies:
                function = self.define(f"{name}_body", self._launch_params, body)
                dispatcher = self.options.njit(function, forceinline=True)
                self._bodies[same] = make_device(dispatcher), body
            self._bodies[key] = self._bodies[same]
        dispatcher, body = self._bodies[key]
        constants = _constants(block, self.code.source.tree)
        constant = {size: f"_k_int64({size})" for size in BLOCK_SIZE.values()}
        args = ", ".join(constant.get(param, param) for param in self._launch_params)
        called = statements(f"_k_body({args})", self.code.source.tree)
        namespace = {**self.namespace, "_k_body": dispatcher, "_k_int64": types.int64}
        function = self.define(name, self._launch_params, [*constants, *called], namespace)
        return Launch(self.options.njit(function), self.text([*constants, *body]), dispatcher)

    def _block_class(self, block: Block) -> tuple[object, ...]:
        """Returns what the emitted code depends on of a block size; equal for blocks for which the
        same code is emitted.
        """
        exact = {1}  # sizes that matter themselves
        for array in self.code.shared_arrays.values():
            if not array.is_dynamic:
                exact.update(array.shape)
        sizes = (size if size in exact else size >= MIN_THREADS for size in block)
        return *map(repr, sizes), has_many_threads(block)

    @property
    def _launch_params(self) -> list[str]:
        params = [*SIZES, SMEM, *self.params]
        if self.options.debug:
            params.append(WHERE)
        return params

    def text(self, body: list[ast.stmt]) -> str:
        """Returns the launch function as Python source."""
        head = f"def {self.code.source.tree.name}({', '.join(self._launch_params)}):\n"
        return head + textwrap.indent(unparse(body) or "pass", "    ") + "\n"


class _Views(ast.NodeTransformer):
    """Replaces the parts of complex parameters by variables; `parts` holds what these stand
    for.
    """

    def __init__(self, params: Collection[str]) -> None:
        self._params = params
        self.parts: dict[str, str] = {}

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        match node:
            case ast.Attribute(ast.Name(array), "real" | "imag" as part, ast.Load()):
                if array in self._params:
                    self.parts[f"_k_{array}_{part}"] = f"{array}.{part}"
                    return place(load(f"_k_{array}_{part}"), node)
        self.generic_visit(node)
        return node


def with_views_once(body: list[ast.stmt], argtypes: TypeMap) -> list[ast.stmt]:
    """Takes `a.real` and `a.imag` of complex parameters once, before the body, which is changed in
    place.

    Each use would make another array structure for LLVM to take apart, in a time that grows faster
    than their number: with 192 uses it took seconds.
    """
    arrays = {name: kind for name, kind in argtypes.items() if isinstance(kind, types.Array)}
    views = _Views([name for name in arrays if arrays[name].dtype in types.complex_domain])
    body = [views.visit(statement) for statement in body]
    text = "\n".join(f"{name} = {value}" for name, value in views.parts.items())
    if not text:
        return body
    return [*statements(text, body[0]), *body]


def _constants(block: Block | None, at: ast.AST) -> list[ast.stmt]:
    """Returns statements that make the sizes of the block known; none if it is None."""
    if block is None:
        return []
    sizes = zip(BLOCK_SIZE.values(), block[: len(AXES)], strict=True)
    return statements("\n".join(f"{name} = {size}" for name, size in sizes), at)


def _along(lanes: str) -> Block:
    """Returns the block in which threads of small blocks are gathered, along one axis."""
    sizes = dict.fromkeys(AXES, 1) | {lanes: LANES}
    return tuple(sizes.values())


def _threads_of_grid(block: Block) -> dict[str, str]:
    """Returns expressions of the threads of the grid along each axis."""
    threads = {}
    for axis, size in zip(AXES, block, strict=True):
        threads[axis] = f"{GRID_SIZE[axis]} * {size}" if size > 1 else GRID_SIZE[axis]
    return threads


def split_shapes(body: list[ast.stmt], argtypes: TypeMap) -> list[ast.stmt]:
    """Rewrites `h, w = a.shape` at the top of a kernel as two assignments, which the analyses
    recognise.
    """
    done: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.Assign(
                [ast.Tuple([*targets])], ast.Attribute(ast.Name(array), "shape") as shape
            ) if _is_of_shape(targets, argtypes, array):
                for axis, target in enumerate(targets):
                    element = ast.Subscript(copied(shape), ast.Constant(axis), ast.Load())
                    done.append(place(ast.Assign([target], element), statement))
            case _:
                done.append(statement)
    return done


def _is_of_shape(targets: list[ast.expr], argtypes: TypeMap, array: str) -> bool:
    """Returns whether there is one variable for each dimension of an array parameter; True for
    variables if the types are unknown.
    """
    if not all(isinstance(target, ast.Name) for target in targets):
        return False
    match argtypes.get(array):
        case types.Array(ndim=ndim):
            return ndim == len(targets)
    return not argtypes
