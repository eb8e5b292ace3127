"""Rewrites constructs that Numba's CPU target lacks into ones that it supports.

for … else: E            a flag set by each `break`, and `if not flag: E` after the loop
round(x, n)              CUDA's rounding, see `_maths/math.py`
n.bit_count()            cuda.popc(n)
cuda.ldcg(a, i)          a[i], as for every load with a cache hint; a store, cuda.stcg(a, i, v), becomes a[i] = v
print(cuda.threadIdx)    print((cuda.threadIdx.x, cuda.threadIdx.y, cuda.threadIdx.z))
print(f"x is {x}")       print("x is", x)
f(*t)                    f(t[0], t[1]) where f is a device function
literal_unroll           numba.literal_unroll, under any imported name
t, i = threadIdx, 0      t = cuda.threadIdx; i = 0, as for all names of members of `numba.cuda` that are no values
"""  # noqa: E501

import ast
from itertools import chain, repeat
from types import FunctionType
from typing import Any, cast

from numba import literal_unroll

from synknumba._errors import KernelError
from synknumba.simt._library.intrinsics import exactly
from synknumba.simt._library.words import AXES, CACHED_LOADS, CACHED_STORES, TRIPLES
from synknumba.simt._lower.constant_parameters import called_function
from synknumba.simt._maths.bits import popc
from synknumba.simt._maths.math import round_to
from synknumba.simt._maths.operations import way_out
from synknumba.simt._source.numba_cuda import MISSING, CudaPath
from synknumba.simt._source.pickling import is_foreign
from synknumba.simt._source.scope import Scope
from synknumba.simt._source.syntax import (
    copied,
    count_stores,
    has_starred,
    load,
    nodes_of,
    one_or_tuple,
    own_exits,
    place,
    statements,
)
from synknumba.simt._source.written import IN_KERNELS, Source, has_rest


def desugared(source: Source) -> Source:
    """Returns the function with these constructs rewritten; changes its tree in place."""
    desugarer = _Desugarer(source)
    desugarer.generic_visit(source.tree)
    return Source(source.function, source.tree, {**source.scope, **desugarer.bound})


class _Desugarer(ast.NodeTransformer):
    """Rewrites a tree in place."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._scope = Scope(source)
        self._tuples = _tuples(source.tree)
        self._count = 0
        self.bound: dict[str, Any] = {}  # the objects behind the new names

    # ---- loops

    def _loop(self, node: ast.For | ast.While) -> ast.stmt | list[ast.stmt]:
        node = cast("ast.For | ast.While", self.generic_visit(node))
        if not node.orelse:
            return node
        behind, node.orelse = node.orelse, []
        if not any(isinstance(leaves, ast.Break) for leaves in own_exits(node.body)):
            return [node, *behind]
        self._count += 1
        flag = f"_k_broken{self._count}"
        node.body = _flagged(node.body, flag)
        guard = ast.If(ast.UnaryOp(ast.Not(), load(flag)), behind, [])
        return [*statements(f"{flag} = False", node), node, place(guard, behind[0])]

    visit_For = visit_While = _loop

    # ---- assignments

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        apart: list[ast.stmt] = []
        for target in list(node.targets):
            pair = self._without_names(target, node.value, apart)
            if pair is None:
                node.targets.remove(target)
            elif pair[1] is not node.value:  # the value is a tuple, of which the names take parts
                node.targets.remove(target)
                apart.append(ast.copy_location(ast.Assign([pair[0]], pair[1]), node))
        if node.targets:
            apart.append(node)
        return [cast(ast.stmt, self.generic_visit(statement)) for statement in apart]

    def _without_names(
        self, target: ast.expr, value: ast.expr, apart: list[ast.stmt]
    ) -> tuple[ast.expr, ast.expr] | None:
        """Returns the target and value of an assignment without the parts that only name a
        member; adds those to `apart`.
        """
        match target, value:
            case ast.Name(id=name), _ if name in self._scope.aliases:
                apart.append(ast.copy_location(ast.Assign([target], value), value))
                return None
            case ast.Tuple(targets), ast.Tuple(values) if len(targets) == len(values):
                pairs = map(self._without_names, targets, values, repeat(apart))
                rest = [*filter(None, pairs)]
                if not rest:
                    return None
                targets, remaining = map(list, zip(*rest, strict=True))
                if remaining != values:
                    new_target = place(one_or_tuple(targets, ast.Store()), target)
                    return new_target, place(one_or_tuple(remaining, ast.Load()), value)
        return target, value

    # ---- operations

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        stored = self._with_hint(node.value, CACHED_STORES, 3)
        if stored is not None:
            array, index, value = map(self.visit, stored)
            return ast.copy_location(ast.Assign([_element(array, index, ast.Store())], value), node)
        return cast(ast.stmt, self.generic_visit(node))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        loaded = self._with_hint(node, CACHED_LOADS, 2)
        if loaded is not None:
            return _element(self.visit(loaded[0]), self.visit(loaded[1]), ast.Load())
        function = self._scope.resolve(node.func)
        called = called_function(function)
        if called is not None or isinstance(function, CudaPath):
            node.args = self._spread(node, called)
        match node:
            case ast.Call(_, [_, _], []) if function is round:
                node.func = self._bind(node.func, round_to)
            case ast.Call() if function is print:
                parts = chain.from_iterable(self._printed(arg, node) for arg in node.args)
                node.args = list(map(self._triple, parts))
            case ast.Call(ast.Attribute(number, "bit_count"), []) if function is MISSING:
                node.args, node.func = [number], self._bind(node.func, popc)
        return cast(ast.expr, self.generic_visit(node))

    def _with_hint(
        self, node: ast.expr, paths: frozenset[str], count: int
    ) -> list[ast.expr] | None:
        """Returns the arguments of a load or store with a cache hint; None for any other
        expression.
        """
        if not isinstance(node, ast.Call):
            return None
        path = self._scope.path_of(node.func)
        if path not in paths:
            return None
        if len(node.args) != count or node.keywords or has_starred(node.args):
            construct = f"cuda.{path}() without exactly {count} arguments"
            raise self._source.refusal(node, construct, "pass exactly that many, by position")
        return node.args

    def _spread(self, node: ast.Call, function: FunctionType | None) -> list[ast.expr]:
        """Returns the arguments with each starred tuple expanded into its elements."""
        spread: list[ast.expr] = []
        for arg in node.args:
            match arg:
                case ast.Starred(value=ast.Tuple(elts=parts)):
                    spread += parts
                case ast.Starred(value=ast.Name()):
                    spread += self._parts(arg, node, function, len(spread))
                case ast.Starred():
                    raise self._unknown_length(node)
                case _:
                    spread.append(arg)
        return spread

    def _parts(
        self, arg: ast.Starred, call: ast.Call, function: FunctionType | None, before: int
    ) -> list[ast.expr]:
        """Returns the elements of a starred variable; `before` arguments precede it."""
        count = self._tuples.get(cast(ast.Name, arg.value).id)
        if count is None:
            if function is None:
                raise self._unknown_length(call)
            params = function.__code__.co_argcount
            if has_rest(function):
                if arg is not call.args[-1]:
                    raise self._unknown_length(call)
                return self._rest(arg, max(0, params - before))
            if has_starred(part for part in call.args if part is not arg) or function.__defaults__:
                raise self._unknown_length(call)
            count = params - len(call.args) - len(call.keywords) + 1
        checked = ast.Call(self._bind(call, exactly), [arg.value, ast.Constant(count)], [])
        return [place(_item(checked, position), arg) for position in range(count)]

    def _unknown_length(self, call: ast.Call) -> KernelError:
        way_out = "write the parts of the tuple one by one"
        return self._source.refusal(call, "* in this call", way_out)

    def _rest(self, arg: ast.Starred, count: int) -> list[ast.expr]:
        """Returns the first elements of a starred tuple, and the others starred, for a parameter
        `*rest`.
        """
        parts: list[ast.expr] = [_item(arg.value, position) for position in range(count)]
        rest = arg.value
        if count:
            rest = ast.Subscript(rest, ast.Slice(ast.Constant(count)), ast.Load())
        return [place(part, arg) for part in (*parts, ast.Starred(rest, ast.Load()))]

    def _printed(self, node: ast.expr, printed: ast.Call) -> list[ast.expr]:
        """Returns the arguments of `print` that write what an f-string does; print writes a
        space between each two.
        """
        if not isinstance(node, ast.JoinedStr):
            return [node]
        parts: list[ast.expr] = []
        after_value = False  # whether a value precedes, not a text
        last = len(node.values) - 1
        for number, part in enumerate(node.values):
            match part:
                case ast.FormattedValue(value, -1, None) if not after_value:
                    parts.append(value)
                    after_value = True
                    continue
                case ast.FormattedValue():
                    raise self._formatting(node, printed)
            after_value = False
            # with the spaces that print writes between parts, and one at either end
            text = str(cast(ast.Constant, part).value)
            if number == 0:
                text = f" {text}"
            if number == last:
                text = f"{text} "
            if not text.startswith(" ") or not text.endswith(" "):
                raise self._formatting(node, printed)
            if text != " ":
                parts.append(ast.copy_location(ast.Constant(text[1:-1]), part))
        return parts or [ast.copy_location(ast.Constant(""), node)]

    def _formatting(self, node: ast.JoinedStr, printed: ast.Call) -> KernelError:
        args = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                args.append(ast.unparse(part.value))
            else:
                args.append(f'"{cast(ast.Constant, part).value!s}"')
        way_out = f"write print({', '.join(args)})"
        return self._source.refusal(printed, "formatting in an f-string", way_out, IN_KERNELS)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        raise self._source.refusal(
            node, "an f-string", "pass its parts to print, as print(text, value)", IN_KERNELS
        )

    def _message(self, node: ast.Raise | ast.Assert) -> ast.stmt:
        """Leaves the text of an exception, which a GPU does not show, as it is."""
        if any(nodes_of(ast.JoinedStr, node)):
            return node
        return cast(ast.stmt, self.generic_visit(node))

    visit_Raise = visit_Assert = _message

    def _triple(self, node: ast.expr) -> ast.expr:
        """Expands `cuda.threadIdx`, `blockIdx`, `blockDim` or `gridDim` into its three
        components; returns others unchanged.
        """
        if self._scope.path_of(node) not in TRIPLES:
            return node
        parts: list[ast.expr] = [ast.Attribute(copied(node), axis, ast.Load()) for axis in AXES]
        return place(ast.Tuple(parts, ast.Load()), node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._unrolled(node) or node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._unrolled(node) or cast(ast.expr, self.generic_visit(node))

    def _unrolled(self, node: ast.Name | ast.Attribute) -> ast.expr | None:
        """Returns Numba's `literal_unroll` for any; None for other values."""
        if not isinstance(node.ctx, ast.Load):
            return None
        value: Any = self._scope.resolve(node)
        if is_foreign(value):
            construct = f"{value.name}(), a function of cuda.declare_device,"
            raise self._source.refusal(node, construct, way_out(""))
        match value:
            case CudaPath("literal_unroll") | object(__name__="literal_unroll"):
                return self._bind(node, literal_unroll)
        return None

    def _bind(self, node: ast.expr, value: Any) -> ast.expr:
        name = f"_k_{value.__name__}"
        self.bound[name] = value
        return ast.copy_location(load(name), node)


def _tuples(tree: ast.FunctionDef) -> dict[str, int]:
    """Returns the lengths of the variables assigned exactly once, from a tuple display without
    `*`.
    """
    stores, lengths = count_stores(tree), {}
    for node in nodes_of(ast.Assign, tree):
        match node:
            case ast.Assign([ast.Name(name)], ast.Tuple(parts)) if stores[name] == 1:
                if not has_starred(parts):
                    lengths[name] = len(parts)
    return lengths


def _item(parts: ast.expr, position: int) -> ast.expr:
    return ast.Subscript(copied(parts), ast.Constant(position), ast.Load())


def _element(array: ast.expr, index: ast.expr, ctx: ast.expr_context) -> ast.expr:
    return ast.copy_location(ast.Subscript(array, index, ctx), array)


def _flagged(body: list[ast.stmt], flag: str) -> list[ast.stmt]:
    """Inserts an assignment of the flag before each `break` of a loop's body."""
    done: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.Break):
            done += statements(f"{flag} = True", statement)
        elif isinstance(statement, ast.If):
            statement.body = _flagged(statement.body, flag)
            statement.orelse = _flagged(statement.orelse, flag)
        done.append(statement)
    return done
