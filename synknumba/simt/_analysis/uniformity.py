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
from synknumba.simt._lower.sync import (
    CollectiveStatement,
    collective_of,
    is_exchanged,
    is_operand,
    synchronises,
)
from synknumba.simt._source.syntax import (
    assigned_names,
    count_stores,
    has_return,
    own_exits,
    parts_of,
    range_arguments,
    read_names,
    walk,
    walk_statements,
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
        match statement:
            case ast.Assign([ast.Name(name)], value) if is_operand(name):
                pass
            case _:
                return
        match value:
            case ast.Name(original) if original in slots:
                if is_exchanged(name):
                    before.remove(statement)
                    call.args = [value if read_names(arg) == {name} else arg for arg in call.args]


def _targets(statement: ast.AST) -> list[ast.expr]:
    """Returns what a statement assigns itself, without those inside it."""
    match statement:
        case ast.Assign(targets):
            return targets
        case ast.AugAssign(target) | ast.For(target):
            return [target]
    return []


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
            self._spread(body)
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

    def _spread(self, body: list[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.Assign(targets, value):
                    if self._assigns_varying(statement):
                        self._mark(statement)
                    elif not self.is_value_tuple(value):
                        unpacked = (part for part in targets if isinstance(part, ast.Tuple))
                        self.varying |= assigned_names(unpacked)
                case ast.AugAssign(value=value):
                    if not self.is_uniform(value):
                        self._mark(statement)
                case ast.If(test, then, orelse):
                    if self.is_uniform(test):
                        self._spread([*then, *orelse])
                    else:
                        self._mark([*then, *orelse])
                case ast.For() | ast.While():
                    self._spread_loop(statement)

    def _assigns_varying(self, statement: ast.Assign) -> bool:
        """Returns whether a statement that all threads run assigns each another value."""
        collective = collective_of(statement)
        if collective is not None:
            return self._differs(collective)
        if is_exchanged(single_target(statement) or ""):
            return True
        if id(statement) in self._first and self._is_read_alike(statement.value):
            return False
        return not self.is_uniform(statement.value)

    def _differs(self, collective: CollectiveStatement) -> bool:
        """Returns whether threads get different results: of a vote, those of a block get one."""
        return self.grid or not collective.operation.is_vote

    def _spread_loop(self, loop: ast.For | ast.While) -> None:
        control = loop.iter if isinstance(loop, ast.For) else loop.test
        # Where a barrier splits the loop, a thread that returns drops out and the remaining
        # threads stay in step.
        early = self._leaves_early(loop.body, returns=not synchronises(loop))
        if early or not self.is_uniform(control):
            self._mark(loop)
            return
        if isinstance(loop, ast.For) and range_arguments(loop) is None:
            self.varying |= assigned_names(loop.target)
        self._spread(loop.body)

    def _mark(self, statements: ast.AST | Iterable[ast.AST]) -> None:
        """Takes what the statements assign as varying, except for the results of votes."""
        for statement in walk_statements(statements):
            collective = collective_of(statement)
            if collective is None or self._differs(collective):
                for target in _targets(statement):
                    self.varying |= assigned_names(target)

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
                parts = parts_of(index)
                match self.param_type(array):
                    case types.Array(ndim=ndim, dtype=types.Number() | types.Boolean()):
                        if ndim == len(parts):
                            return all(map(self.is_uniform, parts))
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.BoolOp() | ast.IfExp():
                return all(map(self._is_read_alike, _operands(node)))
            case ast.Call(keywords=[]) if self.is_pure_function(node.func):
                return all(map(self._is_read_alike, node.args))
            case ast.Call():
                return False
        return self.is_uniform(node)

    def _leaves_early(
        self, body: list[ast.stmt], *, returns: bool, under_varying: bool = False
    ) -> bool:
        """Returns whether some threads may leave a loop, or its iteration, before others."""
        for statement in body:
            match statement:
                case ast.Return() | ast.For() | ast.While() if returns:
                    if has_return(statement):
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
        for statement in body:
            match statement:
                case ast.If(test, then, orelse) if any(own_exits([statement])):
                    if not self.is_uniform(test) or not self.leaves_in_step([*then, *orelse]):
                        return False
        return True

    def is_uniform(self, node: ast.expr) -> bool:
        """Returns whether all threads of a block agree on the value, and evaluating it early is
        safe and reads no memory.
        """
        return self._is_made_of(node, lambda name: name not in self.varying, self.is_pure_function)

    def is_fixed(self, node: ast.expr) -> bool:
        """Returns whether the expression is a uniform integer."""
        return self.is_uniform(node) and self.is_integral(node)

    def _is_cheap(self, node: ast.expr) -> bool:
        """Returns whether to compute the expression again costs less than to store its value."""

        def is_cheap_function(node: ast.expr) -> bool:
            function = self.function_of(node)
            return is_number_type(function) or is_one_of(function, int, min, max, abs)

        stored = self.stored
        return self._is_made_of(node, lambda name: name not in stored, is_cheap_function)

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
            case ast.Attribute(value):
                if isinstance(self.function_of(node), (int, float)):  # such as `math.pi`
                    return True
                return self._is_uniform_field(node) and again(value)
            case ast.Subscript(value, index) if self.is_value_tuple(value):
                return all(map(again, (value, index)))
            case ast.Call(called, args, []) if function(called):
                return all(map(again, args))
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
        if not self._checked:
            return False
        match node:
            case ast.BinOp(_, ast.Div() | ast.FloorDiv() | ast.Mod() | ast.Pow(), divisor):
                match divisor:
                    case ast.Constant(value):
                        return not value
                return True
            case ast.Subscript(slice=index):
                return not isinstance(index, ast.Constant)
        return False

    def _is_uniform_field(self, node: ast.Attribute) -> bool:
        """Returns whether all threads agree on a size of an array, or a field of a named tuple."""
        match self.param_type(node.value):
            case types.BaseNamedTuple():
                pass
            case types.Record():
                return False
            case _ if node.attr not in ARRAY_ATTRIBUTES:
                return False
        return self.is_uniform(node.value)

    # ---- recomputable

    def _find_recomputed(self, body: list[ast.stmt]) -> list[ast.stmt]:
        stores, remaining = count_stores(body), []
        for statement in body:
            match statement:
                case ast.Assign([ast.Name(name)], value) if stores[name] == 1:
                    if name in self.varying and not is_operand(name) and self._is_cheap(value):
                        self.recomputed[name] = self._with_sign(statement)
                        continue
            remaining.append(statement)
        return remaining

    def _with_sign(self, statement: ast.Assign) -> ast.Assign:
        match statement.value:
            case ast.Name() | ast.Constant() | ast.Tuple() | ast.Compare() | ast.BoolOp():
                pass
            case value if self.is_nonneg(value):
                statement.value = nonneg(value)
        return statement

    # ---- threads

    def depends_on(self, node: ast.AST, thread_index: str) -> bool:
        """Returns whether the value may depend on this thread index; any varying variable that
        is not recomputed may.
        """
        names = read_names(node)
        recomputed = names & self.recomputed.keys()
        stored = (names & self.varying) - recomputed - VARYING_STATE
        if stored or names & {thread_index, LINEAR}:
            return True
        values = (self.recomputed[name].value for name in recomputed)
        return any(self.depends_on(value, thread_index) for value in values)
