"""Static analysis of a kernel's variables and expressions.

- *uniform*: all threads of a block hold the same value.
- *varying*: the opposite of uniform.
- *recomputable*: cheap to compute again from thread indices and arguments, so never stored.
- *non-negative*, *positive*, *integral*: properties that loop bounds and index arithmetic need; see
  `_analysis.numbers`.

A collective's operand that only copies a variable with a slot is replaced by the variable
(`without_copies`): the other threads read its slot.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any, cast

from numba.core import types

from synknumba.simt._analysis.namespace import ARRAY_ATTRIBUTES, is_number_type, is_one_of, nonneg
from synknumba.simt._analysis.numbers import Numbers
from synknumba.simt._analysis.types import VariableTypes
from synknumba.simt._analysis.variables import single_target
from synknumba.simt._library.words import BLOCK, LINEAR, VARYING_STATE
from synknumba.simt._lower.sync import collective_of, is_exchanged, is_operand, synchronises
from synknumba.simt._source.syntax import (
    assigned_names,
    count_stores,
    has_return,
    own_exits,
    parts_of,
    range_arguments,
    read_names,
    walk,
)


def _operands(node: ast.expr) -> list[ast.expr]:
    return [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]


def without_copies(body: list[ast.stmt], slots: set[str]) -> list[ast.stmt]:
    """Passes a variable's own slot to collectives instead of a copy:
    `given = v; got = shfl(m, given, d)`.

    `slots` has the variables that are stored for each thread; the statements are changed in place.
    """
    done: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.If() | ast.For() | ast.While():
                statement.body = without_copies(statement.body, slots)
                statement.orelse = without_copies(statement.orelse, slots)
            case ast.Assign(value=ast.Call() as call) if collective_of(statement) is not None:
                _pass_originals(call, done, slots)
        done.append(statement)
    return done


def _pass_originals(call: ast.Call, before: list[ast.stmt], slots: set[str]) -> None:
    """Replaces operands of a collective that the statements before it copy from slots, and drops
    the copies.
    """
    for statement in reversed(list(before)):
        if not is_operand(single_target(statement) or ""):
            return
        match statement:
            case ast.Assign([ast.Name(name)], ast.Name(original) as value) if (
                is_exchanged(name) and original in slots
            ):
                before.remove(statement)
                call.args = [value if read_names(arg) == {name} else arg for arg in call.args]


class Analysis(Numbers):
    """Static analysis of one thread's code, for the arguments of `Names` and two more.

    Args:
        grid: whether the threads of the whole grid run in step; uniform then means equal in all
            blocks.
        checked: whether divisions by zero and indices out of range raise, so that such expressions
            must not be moved.

    Attributes:
        body: the statements without the assignments of recomputable variables.
        varying: variables that may differ between the threads of a block.
    """

    def __init__(
        self,
        body: list[ast.stmt],
        params: Iterable[str],
        namespace: Mapping[str, Any],
        variable_types: VariableTypes,
        *,
        grid: bool = False,
        checked: bool = False,
    ) -> None:
        super().__init__(body, params, namespace, variable_types)
        self._checked, self.grid = checked, grid
        self.varying: set[str] = {*VARYING_STATE, *(BLOCK.values() if grid else ())}
        self._first = {id(statement) for statement in takewhile(self._only_reads, body)}
        before = -1
        while before != len(self.varying):
            before = len(self.varying)
            self._spread(body, under_varying=False)
        body = self._find_recomputed(body)
        self.body = without_copies(body, (self.assigned & self.varying) - set(self.recomputed))

    @contextmanager
    def thread_index(self, statement: ast.Assign, first: str, *, nonneg: bool) -> Iterator[None]:
        """Declares, within the context, that the assigned variable is recomputed.

        Args:
            statement: assignment of `first` plus a thread index to the variable.
            first: block-level variable.
            nonneg: whether `first` is non-negative.
        """
        name = cast(ast.Name, statement.targets[0]).id
        self.block_indices[first] = nonneg
        self.recomputed[name] = self._with_sign(statement)
        try:
            yield
        finally:
            del self.recomputed[name], self.block_indices[first]

    # ---- uniform

    def _spread(self, body: list[ast.stmt], *, under_varying: bool) -> None:
        for statement in body:
            match statement:
                case ast.Assign() if (found := collective_of(statement)) is not None:
                    varies = self.grid or not found.operation.is_vote
                    self._mark(statement.targets[0], varies=varies)
                case ast.Assign(targets=[ast.Name(id=name)]) if is_exchanged(name):
                    self.varying.add(name)
                case ast.Assign():
                    alike = id(statement) in self._first and self._is_read_alike(statement.value)
                    varies = under_varying or not (alike or self.is_uniform(statement.value))
                    for target in statement.targets:
                        unpacks = isinstance(target, ast.Tuple) and not self.is_value_tuple(
                            statement.value
                        )
                        self._mark(target, varies=varies or unpacks)
                case ast.AugAssign():
                    self._mark(
                        statement.target,
                        varies=under_varying or not self.is_uniform(statement.value),
                    )
                case ast.If():
                    varies = under_varying or not self.is_uniform(statement.test)
                    self._spread(statement.body, under_varying=varies)
                    self._spread(statement.orelse, under_varying=varies)
                case ast.For() | ast.While():
                    control = statement.iter if isinstance(statement, ast.For) else statement.test
                    # Where a barrier splits the loop, a thread that returns drops out and the
                    # remaining threads stay in step.
                    early = self._leaves_early(statement.body, returns=not synchronises(statement))
                    varies = under_varying or not self.is_uniform(control) or early
                    if isinstance(statement, ast.For):
                        self._mark(
                            statement.target, varies=varies or range_arguments(statement) is None
                        )
                    self._spread(statement.body, under_varying=varies)

    def _only_reads(self, statement: ast.stmt) -> bool:
        """Returns whether a statement assigns a variable, and neither writes to memory nor waits
        for other threads.
        """
        match statement:
            case ast.Assign(targets, value) if all(isinstance(part, ast.Name) for part in targets):
                calls = (node for node in walk(value) if isinstance(node, ast.Call))
                return all(self.is_pure_function(node.func) for node in calls)
        return False

    def _is_read_alike(self, node: ast.expr) -> bool:
        """Returns whether all threads read the same value, in a statement before which no thread
        has written to memory.

        It is at the beginning of the kernel, where each thread runs it, and may or may not see what
        others write afterwards.
        """
        if self.may_raise(node):
            return False
        match node:
            case ast.Subscript(ast.Name() as array, index):
                kind, parts = self.param_type(array), parts_of(index)
                if isinstance(kind, types.Array) and kind.ndim == len(parts):
                    is_number = isinstance(kind.dtype, types.Number | types.Boolean)
                    return is_number and all(map(self.is_uniform, parts))
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.BoolOp() | ast.IfExp():
                return all(map(self._is_read_alike, _operands(node)))
            case ast.Call(keywords=[]) if self.is_pure_function(node.func):
                return all(map(self._is_read_alike, node.args))
            case ast.Call():
                return False
        return self.is_uniform(node)

    def _mark(self, target: ast.expr, *, varies: bool) -> None:
        if varies:
            self.varying |= assigned_names(target)

    def _leaves_early(
        self, body: list[ast.stmt], *, returns: bool, under_varying: bool = False
    ) -> bool:
        """Returns whether some threads may leave a loop, or its iteration, before others."""
        for statement in body:
            match statement:
                case ast.Return() | ast.For() | ast.While() if returns and has_return(statement):
                    return True
                case ast.Break() | ast.Continue() if under_varying:
                    return True
                case ast.If(test, body, orelse):
                    varies = under_varying or not self.is_uniform(test)
                    inner = [*body, *orelse]
                    if self._leaves_early(inner, returns=returns, under_varying=varies):
                        return True
        return False

    def leaves_in_step(self, body: Iterable[ast.stmt]) -> bool:
        """Returns whether all threads leave a loop and its iterations together: all its exits
        are under uniform tests.
        """
        return all(
            self.is_uniform(statement.test)
            and self.leaves_in_step(statement.body)
            and self.leaves_in_step(statement.orelse)
            for statement in body
            if isinstance(statement, ast.If) and any(own_exits([statement]))
        )

    def is_uniform(self, node: ast.expr) -> bool:
        """Returns whether all threads of a block agree on the value, and evaluating it early is
        safe and reads no memory.
        """
        return self._is_made_of(node, lambda name: name not in self.varying, self.is_pure_function)

    def _is_cheap(self, node: ast.expr) -> bool:
        def is_cheap_function(node: ast.expr) -> bool:
            function = self.function_of(node)
            return is_number_type(function) or is_one_of(function, int, min, max, abs)

        return self._is_made_of(
            node,
            lambda name: name in self.recomputed or name not in self.assigned,
            is_cheap_function,
        )

    def _is_made_of(
        self, node: ast.expr, name: Callable[[str], bool], function: Callable[[ast.expr], bool]
    ) -> bool:
        """Returns whether an expression raises nothing, reads no memory, and all its variables
        and functions pass the tests.
        """
        if self.may_raise(node):
            return False
        again = partial(self._is_made_of, name=name, function=function)
        match node:
            case ast.Name():
                return name(node.id)
            case ast.Constant():
                return True
            case ast.Attribute():
                return self.is_module_constant(node) or (
                    self._is_uniform_field(node) and again(node.value)
                )
            case ast.Subscript():
                return self.is_value_tuple(node.value) and again(node.value) and again(node.slice)
            case ast.Call(keywords=[]):
                return function(node.func) and all(map(again, node.args))
            case (
                ast.BinOp()
                | ast.UnaryOp()
                | ast.Compare()
                | ast.BoolOp()
                | ast.IfExp()
                | ast.Tuple()
            ):
                return all(map(again, _operands(node)))
        return False

    def may_raise(self, node: ast.expr) -> bool:
        """Returns whether evaluating the expression may raise; does not consider its
        subexpressions.
        """
        match node:
            case ast.BinOp(op=ast.Div() | ast.FloorDiv() | ast.Mod() | ast.Pow(), right=divisor):
                return self._checked and not (
                    isinstance(divisor, ast.Constant) and bool(divisor.value)
                )
            case ast.Subscript(slice=index):
                return self._checked and not isinstance(index, ast.Constant)
        return False

    def _is_uniform_field(self, node: ast.Attribute) -> bool:
        kind = self.param_type(node.value)
        is_size = node.attr in ARRAY_ATTRIBUTES and not isinstance(kind, types.Record)
        return (is_size or isinstance(kind, types.BaseNamedTuple)) and self.is_uniform(node.value)

    # ---- recomputable

    def _find_recomputed(self, body: list[ast.stmt]) -> list[ast.stmt]:
        stores, remaining = count_stores(body), []
        candidates = {name for name in self.varying if stores[name] == 1 and not is_operand(name)}
        for statement in body:
            match statement:
                case ast.Assign([ast.Name(name)], value) if name in candidates and self._is_cheap(
                    value
                ):
                    self.recomputed[name] = self._with_sign(statement)
                case _:
                    remaining.append(statement)
        return remaining

    def _with_sign(self, statement: ast.Assign) -> ast.Assign:
        trivial = isinstance(
            statement.value, (ast.Name, ast.Constant, ast.Tuple, ast.Compare, ast.BoolOp)
        )
        if not trivial and self.is_nonneg(statement.value):
            statement.value = nonneg(statement.value)
        return statement

    # ---- threads

    def depends_on(self, node: ast.AST, thread_index: str) -> bool:
        """Returns whether the value may depend on this thread index; any varying variable that
        is not recomputed may.
        """
        for name in read_names(node):
            if name in (thread_index, LINEAR):
                return True
            if name in self.recomputed:
                if self.depends_on(self.recomputed[name].value, thread_index):
                    return True
            elif name in self.varying and name not in VARYING_STATE:
                return True
        return False
