"""What can be said about a kernel's variables and expressions before it runs.

- *uniform*: all threads of a block hold the same value.
- *recomputable*: cheap to compute again from thread indices and arguments, so it is never stored.
- *non-negative*, *positive*, *integral*: what loop bounds and index arithmetic need.
"""

import ast
import builtins
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, ModuleType
from typing import Any, cast

import numpy as np
from numba.core import types

from synknumba.simt._ast import assigned_names, call_name, has_return, own_exits, range_arguments, read_names, walk
from synknumba.simt._operations import BLOCK, LINEAR, SIZES, STATE, VARYING_STATE
from synknumba.simt._sync import collective_of, is_exchanged, is_operand, synchronises
from synknumba.simt._types import VariableTypes, is_integer_type
from synknumba.simt._variables import definitions, single_target

NONNEG = "_k_nonneg"

PURE_BUILTINS = frozenset({"abs", "bool", "float", "int", "len", "max", "min", "range", "round"})
ARRAY_ATTRIBUTES = frozenset({"shape", "size", "ndim", "itemsize", "nbytes"})


class Analysis:
    """What is known about the code of one thread.

    Args:
        body: the statements.
        params: the variables that are never assigned: arguments, shared arrays.
        namespace: what global names stand for.
        variable_types: the types of variables.
        grid: whether the threads of all blocks run together, so that uniform means the same in all of them.
        checked: whether a division by zero or an index out of range is an error, so that neither may be evaluated elsewhere.

    Attributes:
        body: the statements, those of recomputable variables taken out.
        assigned: every variable that the body assigns.
        varying: the variables that may differ between the threads of a block.
        recomputed: the recomputable variables and their assignments, in order.
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
        self._checked = checked
        self.params = frozenset(params)
        self.namespace = namespace
        self.types = variable_types
        self.assigned = assigned_names(body)
        self._definitions = definitions(body)
        self.grid = grid
        self.varying: set[str] = {*VARYING_STATE, *(BLOCK.values() if grid else ())}
        self._find_varying(body)
        # Variables of the block level that the emitter makes, and whether they cannot be negative.
        self._block_indices: dict[str, bool] = {}
        self.recomputed: dict[str, ast.Assign] = {}
        self._counts = Counter(node.id for node in walk(body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        self.body = self._without_copies(self._find_recomputed(body))

    @contextmanager
    def thread_index(self, statement: ast.Assign, first: str, *, nonneg: bool) -> Iterator[None]:
        """Inside, the variable that the statement assigns is `first` plus a thread index, and is recomputed."""
        name = cast(ast.Name, statement.targets[0]).id
        self._block_indices[first] = nonneg
        self.recomputed[name] = self._with_sign(statement)
        try:
            yield
        finally:
            del self.recomputed[name], self._block_indices[first]

    # ---- collectives

    def _without_copies(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Has collectives take a variable's own slot instead of a copy: for `given = v`, `got = shfl(m, given, d)`."""
        done: list[ast.stmt] = []
        for statement in body:
            if isinstance(statement, (ast.If, ast.For, ast.While)):
                statement.body = self._without_copies(statement.body)
                statement.orelse = self._without_copies(statement.orelse)
            found = collective_of(statement)
            if found is not None and isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
                last = next((at for at in range(len(done) - 1, -1, -1) if not is_operand(single_target(done[at]) or "")), -1)
                for copied in done[last + 1 :]:
                    name, value = single_target(copied), copied.value if isinstance(copied, ast.Assign) else None
                    if (
                        name is None
                        or not is_exchanged(name)
                        or not isinstance(value, ast.Name)
                        or not self._has_slot(value.id)
                    ):
                        continue
                    done.remove(copied)
                    statement.value.args = [value if read_names(arg) == {name} else arg for arg in statement.value.args]
            done.append(statement)
        return done

    def _has_slot(self, name: str) -> bool:
        return name in self.assigned and name in self.varying and name not in self.recomputed

    # ---- uniform

    def _find_varying(self, body: list[ast.stmt]) -> None:
        before = -1
        while before != len(self.varying):
            before = len(self.varying)
            self._spread(body, under_varying=False)

    def _spread(self, body: list[ast.stmt], *, under_varying: bool) -> None:
        for statement in body:
            match statement:
                case ast.Assign() if (found := collective_of(statement)) is not None:
                    varies = self.grid or not found.operation.is_vote
                    self._mark(statement.targets[0], varies=varies)
                case ast.Assign(targets=[ast.Name(id=name)]) if is_exchanged(name):
                    self.varying.add(name)
                case ast.Assign():
                    varies = under_varying or not self.is_uniform(statement.value)
                    for target in statement.targets:
                        unpacks = isinstance(target, ast.Tuple) and not self._is_value_tuple(statement.value)
                        self._mark(target, varies=varies or unpacks)
                case ast.AugAssign():
                    self._mark(statement.target, varies=under_varying or not self.is_uniform(statement.value))
                case ast.If():
                    varies = under_varying or not self.is_uniform(statement.test)
                    self._spread(statement.body, under_varying=varies)
                    self._spread(statement.orelse, under_varying=varies)
                case ast.For() | ast.While():
                    control = statement.iter if isinstance(statement, ast.For) else statement.test
                    # Where a barrier splits the loop, a thread that returns is one less, and those left are in step.
                    early = self._leaves_early(statement.body, returns=not synchronises(statement))
                    varies = under_varying or not self.is_uniform(control) or early
                    if isinstance(statement, ast.For):
                        self._mark(statement.target, varies=varies or range_arguments(statement) is None)
                    self._spread(statement.body, under_varying=varies)

    def _mark(self, target: ast.expr, *, varies: bool) -> None:
        if varies:
            self.varying |= assigned_names(target)

    def _leaves_early(self, body: list[ast.stmt], *, returns: bool, under_varying: bool = False) -> bool:
        """Whether some threads may leave a loop, or its iteration, before others."""
        for statement in body:
            if isinstance(statement, ast.Return) and returns:
                return True
            if under_varying and isinstance(statement, (ast.Break, ast.Continue)):
                return True
            if isinstance(statement, ast.If):
                varies = under_varying or not self.is_uniform(statement.test)
                parts = (statement.body, statement.orelse)
                if any(self._leaves_early(part, returns=returns, under_varying=varies) for part in parts):
                    return True
            if isinstance(statement, (ast.For, ast.While)) and returns and has_return(statement.body):
                return True
        return False

    def leaves_in_step(self, body: Iterable[ast.stmt]) -> bool:
        """Whether all threads leave a loop, and its iterations, at the same time: its own exits stand under uniform tests."""
        for statement in body:
            if isinstance(statement, ast.If) and any(own_exits([statement])):
                if not self.is_uniform(statement.test):
                    return False
                if not (self.leaves_in_step(statement.body) and self.leaves_in_step(statement.orelse)):
                    return False
        return True

    def is_uniform(self, node: ast.expr) -> bool:
        """Whether the expression has the same value in all threads of a block, reads no memory, and may be evaluated early."""
        if self.may_raise(node):
            return False
        match node:
            case ast.Name():
                return node.id not in self.varying
            case ast.Constant():
                return True
            case ast.Attribute():
                return self._is_uniform_attribute(node)
            case ast.Subscript():
                return self._is_value_tuple(node.value) and self.is_uniform(node.value) and self.is_uniform(node.slice)
            case ast.Call():
                return self.is_pure_function(node.func) and not node.keywords and all(map(self.is_uniform, node.args))
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.BoolOp() | ast.IfExp() | ast.Tuple():
                return all(self.is_uniform(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
        return False

    def may_raise(self, node: ast.expr) -> bool:
        """Whether evaluating the expression may be an error; its parts are not looked at."""
        match node:
            case ast.BinOp(op=ast.Div() | ast.FloorDiv() | ast.Mod() | ast.Pow(), right=divisor):
                return self._checked and not (isinstance(divisor, ast.Constant) and bool(divisor.value))
            case ast.Subscript(slice=index):
                return self._checked and not isinstance(index, ast.Constant)
        return False

    def _is_uniform_attribute(self, node: ast.Attribute) -> bool:
        if self._is_module_constant(node):
            return True
        if not self.is_uniform(node.value):
            return False
        if node.attr in ARRAY_ATTRIBUTES and not isinstance(self._param_type(node.value), types.Record):
            return True
        return isinstance(self._param_type(node.value), types.BaseNamedTuple)

    def _is_value_tuple(self, node: ast.expr) -> bool:
        """Whether the expression is a tuple of values: an array's shape, or a tuple argument."""
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            return True
        return isinstance(self._param_type(node), types.BaseTuple)

    def _param_type(self, node: ast.expr) -> types.Type | None:
        return self.types.params.get(node.id) if isinstance(node, ast.Name) and node.id in self.params else None

    def _is_module_constant(self, node: ast.Attribute) -> bool:
        if not isinstance(node.value, ast.Name):
            return False
        module = self.namespace.get(node.value.id)
        return isinstance(module, ModuleType) and isinstance(getattr(module, node.attr, None), (int, float))

    def function_of(self, node: ast.expr) -> Any:
        """What a called expression stands for, if that is known: a builtin, a math function, a type."""
        if isinstance(node, ast.Name):
            if node.id in self.namespace:
                return self.namespace[node.id]
            is_local = node.id in self.assigned or node.id in self.params
            return None if is_local else getattr(builtins, node.id, None)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = self.namespace.get(node.value.id)
            return getattr(module, node.attr, None) if isinstance(module, ModuleType) else None
        return None

    def is_pure_function(self, node: ast.expr) -> bool:
        """Whether the function only computes: the builtins of that kind, math functions, number types."""
        if isinstance(node, ast.Name) and node.id == NONNEG:
            return True
        function = self.function_of(node)
        if isinstance(function, BuiltinFunctionType) and function.__module__ == math.__name__:
            return True
        if isinstance(function, np.ufunc) or _is_number_type(function):
            return True
        return getattr(function, "__module__", None) == "builtins" and getattr(function, "__name__", "") in PURE_BUILTINS

    # ---- recomputable

    def _find_recomputed(self, body: list[ast.stmt]) -> list[ast.stmt]:
        kept = []
        for statement in body:
            name = single_target(statement)
            if (
                name is not None
                and isinstance(statement, ast.Assign)
                and self._counts[name] == 1
                and name in self.varying
                and not is_operand(name)
                and self._is_cheap(statement.value)
            ):
                self.recomputed[name] = self._with_sign(statement)
            else:
                kept.append(statement)
        return kept

    def _with_sign(self, statement: ast.Assign) -> ast.Assign:
        trivial = isinstance(statement.value, (ast.Name, ast.Constant, ast.Tuple, ast.Compare, ast.BoolOp))
        if not trivial and self.is_nonneg(statement.value):
            value = ast.Call(ast.Name(NONNEG, ast.Load()), [statement.value], [])
            statement.value = ast.fix_missing_locations(ast.copy_location(value, statement.value))
        return statement

    def _is_cheap(self, node: ast.expr) -> bool:
        if self.may_raise(node):
            return False
        match node:
            case ast.Name():
                known = node.id in self.recomputed or node.id in self.params or node.id in STATE or node.id == LINEAR
                return known or node.id not in self.assigned
            case ast.Constant():
                return True
            case ast.Attribute():
                return self._is_module_constant(node) or (self._is_cheap(node.value) and self._is_uniform_attribute(node))
            case ast.Subscript():
                return self._is_value_tuple(node.value) and self._is_cheap(node.value) and self._is_cheap(node.slice)
            case ast.Call():
                function = self.function_of(node.func)
                cheap = _is_number_type(function) or _is_one_of(function, int, min, max, abs)
                return cheap and not node.keywords and all(map(self._is_cheap, node.args))
            case ast.BinOp() | ast.UnaryOp() | ast.Compare() | ast.BoolOp() | ast.IfExp() | ast.Tuple():
                return all(self._is_cheap(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
        return False

    # ---- numbers

    def is_nonneg(self, node: ast.expr) -> bool:
        """Whether the expression is an integer that cannot be negative."""
        match node:
            case ast.Constant():
                return type(node.value) is int and node.value >= 0
            case ast.Name():
                if node.id in STATE or node.id == LINEAR:
                    return True
                if node.id in self._block_indices:
                    return self._block_indices[node.id]
                if node.id in self.namespace:
                    constant = self.namespace[node.id]
                    return type(constant) is int and constant >= 0
                value = self.definition(node.id)
                return value is not None and self.is_nonneg(value)
            case ast.Attribute():
                return self._is_array_number(node)
            case ast.Subscript():
                return self._is_array_number(node)
            case ast.Call():
                if call_name(node) == NONNEG:
                    return True
                return _is_one_of(self.function_of(node.func), min, max) and all(map(self.is_nonneg, node.args))
            case ast.BinOp(op=ast.Add() | ast.Mult() | ast.FloorDiv() | ast.Mod() | ast.RShift() | ast.BitAnd()):
                return self.is_nonneg(node.left) and self.is_nonneg(node.right)
        return False

    def is_positive(self, node: ast.expr) -> bool:
        """Whether the expression is an integer above zero."""
        match node:
            case ast.Constant():
                return type(node.value) is int and node.value > 0
            case ast.Name():
                if node.id in SIZES:
                    return True
                value = self.definition(node.id)
                constant = self.namespace.get(node.id)
                return (value is not None and self.is_positive(value)) or (type(constant) is int and constant > 0)
            case ast.BinOp(op=ast.Mult()):
                return self.is_positive(node.left) and self.is_positive(node.right)
            case ast.BinOp(op=ast.Add()):
                pair = (node.left, node.right)
                return all(map(self.is_nonneg, pair)) and any(map(self.is_positive, pair))
        return False

    def definition(self, name: str) -> ast.expr | None:
        """What the variable stands for all the time, if it is assigned once, at the top, from values of that kind."""
        if name in self.recomputed:
            return self.recomputed[name].value
        return self._definitions.get(name)

    def is_settled(self, node: ast.expr) -> bool:
        """Whether the expression has the same value wherever in the kernel it is evaluated."""
        return all(name not in self.assigned or self.definition(name) is not None for name in read_names(node))

    def is_integral(self, node: ast.expr) -> bool:
        """Whether the expression is an integer, computed in int64."""
        match node:
            case ast.Constant():
                return type(node.value) is int
            case ast.Name():
                if node.id in STATE or node.id == LINEAR or node.id in self._block_indices:
                    return True
                constant = self.namespace.get(node.id)
                if node.id in self.namespace:
                    return type(constant) is int
                value = self.definition(node.id)
                if value is not None and self.is_integral(value):
                    return True
                return is_integer_type(self.types.of(node.id))
            case ast.Call():
                return self._is_integral_call(node)
            case ast.Attribute() | ast.Subscript():
                return self._is_array_number(node)
            case ast.BinOp():
                whole = isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.RShift))
                return whole and self.is_integral(node.left) and self.is_integral(node.right)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                return self.is_integral(node.operand)
        return False

    @property
    def arrays(self) -> frozenset[str]:
        """The parameters that are arrays, or all of them if their types are not known."""
        if not self.types.params:
            return self.params
        return frozenset(name for name in self.params if isinstance(self.types.params.get(name), types.Array))

    def is_known_number(self, node: ast.expr) -> bool:
        """Whether the expression is surely a real number: only such limits may become loop bounds."""
        if self.is_integral(node):
            return True
        match node:
            case ast.Constant():
                return type(node.value) in {int, float}
            case ast.Name():
                if node.id in self.namespace:
                    return isinstance(self.namespace[node.id], (int, float, np.integer, np.floating))
                return isinstance(self.types.of(node.id), (types.Integer, types.Float))
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
                return self.is_known_number(node.left) and self.is_known_number(node.right)
        return False

    def _is_integral_call(self, node: ast.Call) -> bool:
        if call_name(node) == NONNEG:
            return self.is_integral(node.args[0])
        function = self.function_of(node.func)
        if isinstance(function, types.Type):
            return is_integer_type(function)
        return _is_one_of(function, abs, max, min) and all(map(self.is_integral, node.args))

    def _is_array_number(self, node: ast.expr) -> bool:
        """Whether the expression is `a.shape[k]`, `a.size` or `a.ndim` of an array argument."""
        if isinstance(node, ast.Subscript):
            return isinstance(node.value, ast.Attribute) and node.value.attr == "shape" and self._is_array(node.value.value)
        return isinstance(node, ast.Attribute) and node.attr in {"size", "ndim"} and self._is_array(node.value)

    def _is_array(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.arrays

    # ---- threads

    def depends_on(self, node: ast.AST, thread_index: str) -> bool:
        """Whether the value may change with this thread index (or is a varying variable, of which nothing is known)."""
        for name in read_names(node):
            if name in (thread_index, LINEAR):
                return True
            if name in self.recomputed:
                if self.depends_on(self.recomputed[name].value, thread_index):
                    return True
            elif name in self.varying and name not in VARYING_STATE:
                return True
        return False


def _is_one_of(function: Any, *candidates: Any) -> bool:
    """By identity: a global may be an array, which cannot be hashed and compares by element."""
    return any(function is candidate for candidate in candidates)


def _is_number_type(function: Any) -> bool:
    if isinstance(function, types.Type):
        return isinstance(function, (types.Number, types.Boolean))
    return isinstance(function, type) and issubclass(function, (np.number, np.bool_, bool, int, float))
