"""Conditions on a thread index as bounds of the loop over threads.

`if i < n: …`, where `i` is a thread index plus a uniform offset and `n` is uniform, needs no test
in each thread: the loop over the threads ends earlier instead. The loop body is then free of
branches, so LLVM can vectorize it.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce

from synknumba.simt._analysis.namespace import NONNEG, nonneg
from synknumba.simt._analysis.uniformity import Analysis
from synknumba.simt._library.words import AXES, STATE, THREAD
from synknumba.simt._source.syntax import read_names, walk

_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
}
_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}


@dataclass(slots=True)
class Bounds:
    """The threads that a loop visits, and the conditions that hold in it."""

    # Inclusive lower and exclusive upper bounds of the thread index, as expressions, for each axis.
    low: dict[str, list[str]] = field(default_factory=lambda: {axis: [] for axis in AXES})
    high: dict[str, list[str]] = field(default_factory=lambda: {axis: [] for axis in AXES})
    # conditions that hold in each thread visited
    facts: list[ast.expr] = field(default_factory=list)

    def range_text(self, axis: str) -> str:
        """Returns the arguments of `range` for an axis."""
        start = f"{self.low_text(axis)}, " if self.low[axis] else ""
        return start + self.high_text(axis)

    def low_text(self, axis: str) -> str:
        """Returns the expression of the first thread index."""
        return _nested("max", ["0", *self.low[axis]])

    def high_text(self, axis: str) -> str:
        """Returns the expression of the end (exclusive) of the thread indices."""
        return _nested("min", self.high[axis])

    def copy(self) -> "Bounds":
        """Returns an independent copy, to which bounds can be added."""
        low, high = (
            {axis: [*terms] for axis, terms in bounds.items()} for bounds in (self.low, self.high)
        )
        return Bounds(low, high, [*self.facts])


def _nested(function: str, terms: list[str]) -> str:
    return reduce(lambda text, term: f"{function}({text}, {term})", terms)


class Guards:
    """Recognises conditions on thread indices in one kernel; `block_text` writes a uniform
    expression at the block level.
    """

    def __init__(self, analysis: Analysis, block_text: Callable[[ast.expr], str]) -> None:
        self._analysis = analysis
        self._block_text = block_text

    def offset(self, node: ast.expr, axis: str) -> str | None:
        """Returns the uniform integer `u` of an expression `u + <thread index>`; None for any
        other expression.
        """
        analysis = self._analysis
        match node:
            case ast.Call(ast.Name(name), [inner]) if name == NONNEG:
                return self.offset(inner, axis)
            case ast.Name(name):
                if name == THREAD[axis]:
                    return "0"
                definition = analysis.recomputed.get(name)
                return self.offset(definition.value, axis) if definition else None
            case ast.BinOp(left, ast.Add(), right):
                sign, pairs = "+", [(left, right), (right, left)]
            case ast.BinOp(left, ast.Sub(), right):
                sign, pairs = "-", [(left, right)]
            case _:
                return None
        for moving, fixed in pairs:
            base = self.offset(moving, axis)
            if base is not None and analysis.is_uniform(fixed) and analysis.is_integral(fixed):
                text = self._block_text(fixed)
                return f"({base} {sign} {text})" if base != "0" or sign == "-" else text
        return None

    def absorb(
        self, test: ast.expr, bounds: Bounds, writes: set[str], *, negate: bool = False
    ) -> ast.expr | None:
        """Moves the parts of a condition that bound a thread index into `bounds`.

        Args:
            test: the condition.
            bounds: receives the bounds.
            writes: variables that the code within the bounds assigns; a bound must not read them.
            negate: whether the code runs where the condition does not hold.

        Returns:
            The remaining condition; None if nothing remains, `test` itself if nothing could be
            moved.
        """
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            rest = self.absorb(test.operand, bounds, writes, negate=not negate)
            if rest is None:
                return None
            if rest is test.operand:
                return test
            return ast.copy_location(ast.UnaryOp(ast.Not(), rest), test)
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or if negate else ast.And):
            parts = [self.absorb(part, bounds, writes, negate=negate) for part in test.values]
            if all(part is old for part, old in zip(parts, test.values, strict=True)):
                return test
            remaining = [part for part in parts if part is not None]
            if len(remaining) < 2:
                return remaining[0] if remaining else None
            return ast.copy_location(ast.BoolOp(test.op, remaining), test)
        if isinstance(test, ast.Compare) and self._absorb_comparison(
            test, bounds, writes, negate=negate
        ):
            return None
        return test

    def _absorb_comparison(
        self, test: ast.Compare, bounds: Bounds, writes: set[str], *, negate: bool
    ) -> bool:
        pairs = list(
            zip([test.left, *test.comparators[:-1]], test.ops, test.comparators, strict=True)
        )
        if len(pairs) > 1:
            return not negate and self._absorb_chain(pairs, bounds, writes)
        left, operator, right = pairs[0]
        kind = _NEGATED.get(type(operator)) if negate else type(operator)
        if kind is None or kind not in _FLIPPED:
            return False
        sides = [(left, kind, right), (right, _FLIPPED[kind], left)]
        facts = [
            ast.copy_location(ast.Compare(moving, [sign()], [limit]), limit)
            for moving, sign, limit in sides
        ]
        return any(
            self._add(axis, fact, bounds, writes, nan_runs=negate)
            for axis in AXES
            for fact in facts
        )

    def _absorb_chain(
        self, pairs: list[tuple[ast.expr, ast.cmpop, ast.expr]], bounds: Bounds, writes: set[str]
    ) -> bool:
        """Moves a chained comparison such as `0 < i < n` into the bounds, as a whole or not at
        all.
        """
        trial = bounds.copy()
        for left, operator, right in pairs:
            part = ast.copy_location(ast.Compare(left, [operator], [right]), left)
            if not self._absorb_comparison(part, trial, writes, negate=False):
                return False
        bounds.low, bounds.high, bounds.facts = trial.low, trial.high, trial.facts
        return True

    def _add(
        self, axis: str, fact: ast.Compare, bounds: Bounds, writes: set[str], *, nan_runs: bool
    ) -> bool:
        """Adds `moving <sign> limit` if `moving` is a thread index plus a uniform integer and
        `limit` is uniform.

        A comparison with NaN is false: if `limit` is NaN, no thread runs, or with `nan_runs`
        (negated conditions) every thread.
        """
        analysis = self._analysis
        moving, sign, limit = fact.left, type(fact.ops[0]), fact.comparators[0]
        if (
            not analysis.is_uniform(limit)
            or read_names([limit, moving]) & writes
            or not analysis.is_known_number(limit)
        ):
            return False
        base, integral = self.offset(moving, axis), analysis.is_integral(limit)
        if base is None or (sign is ast.Eq and not integral):
            return False
        is_upper = sign in {ast.Lt, ast.LtE}
        rounding, more = ("floor", " + 1") if sign in {ast.LtE, ast.Gt} else ("ceil", "")
        minus = "" if base == "0" else f" - {base}"
        bound = self._block_text(limit)
        # to an integer far from the ends of int64, so that adding an index cannot overflow
        if not self._is_moderate(limit):
            bound = f"_k_{rounding}_bound({bound}, {-1 if is_upper != nan_runs else 1})"
        (bounds.high if is_upper else bounds.low)[axis].append(f"{bound}{more}{minus}")
        if sign is ast.Eq:
            bounds.high[axis].append(f"{bound} + 1{minus}")
        if integral:  # with a float limit, the fact would be wrong for NaN
            bounds.facts.append(fact)
        return True

    def _is_moderate(self, node: ast.expr) -> bool:
        """Returns whether the expression is an integer made of array sizes, indices and small
        constants only.
        """
        if not self._analysis.is_integral(node):
            return False
        for part in walk(node):
            match part:
                case ast.Constant(int(value)) if abs(value) > 1 << 32:
                    return False
                case ast.BinOp(ast.Constant(), ast.Mult()) | ast.BinOp(
                    _, ast.Mult(), ast.Constant()
                ):
                    pass
                case ast.BinOp(op=ast.Mult()) if not read_names(part) <= set(STATE):
                    return False
                case ast.Name(name) if not self._is_moderate_name(name):
                    return False
        return True

    def _is_moderate_name(self, name: str) -> bool:
        if name in STATE or name in self._analysis.arrays:
            return True
        value = self._analysis.definition(name)
        return value is not None and self._is_moderate(value)


def inner_axis(analysis: Analysis) -> str:
    """Returns the axis for the innermost loop: neighbouring threads along it access neighbouring
    elements most often.
    """
    guards = Guards(analysis, ast.unparse)
    votes = dict.fromkeys(AXES, 0)
    for node in walk(analysis.body):
        match node:
            case ast.Subscript(slice=ast.Tuple(elts=[*_, last])):
                for axis in AXES:
                    votes[axis] += guards.offset(last, axis) is not None
    return max(AXES, key=lambda axis: votes[axis])


def with_signs(body: list[ast.stmt], facts: list[ast.expr]) -> list[ast.stmt]:
    """Marks an index `a - b` as non-negative, in place, where one of the facts, which hold in
    all statements, is `a >= b`.
    """
    differences = {f"{larger} - {smaller}" for fact in facts for larger, smaller in _ordered(fact)}
    if not differences:
        return body
    signed = _Signed(differences)
    return [signed.visit(statement) for statement in body]


def _ordered(fact: ast.expr) -> list[tuple[str, str]]:
    """Returns the larger and the smaller side of a comparison; an empty list for any other
    condition.
    """
    match fact:
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE()], comparators=[right]):
            return [(operand_text(left), operand_text(right))]
        case ast.Compare(left=left, ops=[ast.Lt() | ast.LtE()], comparators=[right]):
            return [(operand_text(right), operand_text(left))]
    return []


def operand_text(node: ast.expr) -> str:
    """Returns the text of an expression for use in another one."""
    text = ast.unparse(node)
    is_atom = isinstance(node, (ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Call))
    return text if is_atom else f"({text})"


class _Signed(ast.NodeTransformer):
    def __init__(self, differences: set[str]) -> None:
        self._known = differences

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.slice, ast.Tuple):
            node.slice.elts = [self._sign(element) for element in node.slice.elts]
        else:
            node.slice = self._sign(node.slice)
        return node

    def _sign(self, index: ast.expr) -> ast.expr:
        match index:
            case ast.BinOp(left, ast.Sub(), right) if (
                f"{operand_text(left)} - {operand_text(right)}" in self._known
            ):
                return nonneg(index)
        return index
