"""Conditions on a thread index as bounds of the loop over threads.

`if i < n: …`, where `i` is a thread index plus a uniform offset and `n` is uniform, needs no test
in each thread: the loop over the threads ends earlier instead. The loop body is then free of
branches, so LLVM can vectorize it.
"""

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from itertools import product

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
_KEPT = {sign: sign for sign in _FLIPPED}
# How a limit becomes an integer bound, and what is added to it.
_ROUNDING = {
    ast.Lt: ("ceil", ""),
    ast.LtE: ("floor", " + 1"),
    ast.Gt: ("floor", " + 1"),
    ast.GtE: ("ceil", ""),
    ast.Eq: ("ceil", ""),
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
        if not self.low[axis]:
            return self.high_text(axis)
        return f"{self.low_text(axis)}, {self.high_text(axis)}"

    def low_text(self, axis: str) -> str:
        """Returns the expression of the first thread index."""
        return _nested("max", ["0", *self.low[axis]])

    def high_text(self, axis: str) -> str:
        """Returns the expression of the end (exclusive) of the thread indices."""
        return _nested("min", self.high[axis])

    def axes(self) -> list[str]:
        """Returns the axes along which there are bounds."""
        return [axis for axis in AXES if self.low[axis] + self.high[axis]]

    def along(self, axis: str) -> tuple[list[str], list[str]]:
        """Returns the lower and the upper bounds of an axis."""
        return self.low[axis], self.high[axis]

    def copy(self) -> "Bounds":
        """Returns an independent copy, to which bounds can be added."""
        return Bounds(_copied(self.low), _copied(self.high), [*self.facts])


def _copied(bounds: dict[str, list[str]]) -> dict[str, list[str]]:
    return {axis: [*terms] for axis, terms in bounds.items()}


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
                if name in analysis.recomputed:
                    return self.offset(analysis.recomputed[name].value, axis)
            case ast.BinOp(left, ast.Add(), right):
                return self._sum(left, "+", right, axis) or self._sum(right, "+", left, axis)
            case ast.BinOp(left, ast.Sub(), right):
                return self._sum(left, "-", right, axis)
        return None

    def _sum(self, moving: ast.expr, sign: str, fixed: ast.expr, axis: str) -> str | None:
        """Returns the offset of `moving ± fixed`; None unless `fixed` is a uniform integer."""
        base = self.offset(moving, axis)
        if base is None or not self._analysis.is_fixed(fixed):
            return None
        text = self._block_text(fixed)
        if (base, sign) == ("0", "+"):
            return text
        return f"({base} {sign} {text})"

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
        match test, negate:
            case ast.UnaryOp(ast.Not(), operand), _:
                rest = self.absorb(operand, bounds, writes, negate=not negate)
                if rest is None:
                    return None
                if rest is operand:
                    return test
                return ast.copy_location(ast.UnaryOp(ast.Not(), rest), test)
            case (ast.BoolOp(ast.And(), values) as joined, False) | (
                ast.BoolOp(ast.Or(), values) as joined,
                True,
            ):
                parts = [self.absorb(part, bounds, writes, negate=negate) for part in values]
                if all(map(operator.is_, parts, values)):
                    return test
                remaining = [part for part in parts if part is not None]
                return _combined(joined, remaining)
            case ast.Compare(), _ if self._absorb_comparison(test, bounds, writes, negate=negate):
                return None
        return test

    def _absorb_comparison(
        self, test: ast.Compare, bounds: Bounds, writes: set[str], *, negate: bool
    ) -> bool:
        if len(test.ops) > 1:
            return not negate and self._absorb_chain(test, bounds, writes)
        left, sign, right = test.left, type(test.ops[0]), test.comparators[0]
        signs = _NEGATED if negate else _KEPT
        if sign not in signs:
            return False
        sign = signs[sign]
        facts = _comparison(left, sign, right), _comparison(right, _FLIPPED[sign], left)
        for axis, fact in product(AXES, facts):
            if self._add(axis, fact, bounds, writes, nan_runs=negate):
                return True
        return False

    def _absorb_chain(self, test: ast.Compare, bounds: Bounds, writes: set[str]) -> bool:
        """Moves a chained comparison such as `0 < i < n` into the bounds, as a whole or not at
        all.
        """
        trial = bounds.copy()
        lefts = [test.left, *test.comparators[:-1]]
        for left, sign, right in zip(lefts, test.ops, test.comparators, strict=True):
            part = ast.copy_location(ast.Compare(left, [sign], [right]), left)
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
        if read_names([limit, moving]) & writes:
            return False
        if not (analysis.is_uniform(limit) and analysis.is_known_number(limit)):
            return False
        base, integral = self.offset(moving, axis), analysis.is_integral(limit)
        if base is None or (sign is ast.Eq and not integral):
            return False
        is_upper = sign in {ast.Lt, ast.LtE}
        rounding, more = _ROUNDING[sign]
        minus = "" if base == "0" else f" - {base}"
        bound = self._block_text(limit)
        # to an integer far from the ends of int64, so that adding an index cannot overflow
        if not self._is_moderate(limit):
            of_nan = -1 if is_upper != nan_runs else 1
            bound = f"_k_{rounding}_bound({bound}, {of_nan})"
        side = bounds.high if is_upper else bounds.low
        side[axis].append(f"{bound}{more}{minus}")
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
                case ast.BinOp(ast.Constant(), ast.Mult()):
                    pass
                case ast.BinOp(_, ast.Mult(), ast.Constant()):
                    pass
                case ast.BinOp(op=ast.Mult()) if not read_names(part) <= set(STATE):
                    return False
                case ast.Name(name) if not self._is_moderate_name(name):
                    return False
        return True

    def _is_moderate_name(self, name: str) -> bool:
        if name in STATE or name in self._analysis.arrays:
            return True
        return self._analysis.is_defined_as(name, self._is_moderate)


def _comparison(left: ast.expr, sign: type[ast.cmpop], right: ast.expr) -> ast.Compare:
    return ast.copy_location(ast.Compare(left, [sign()], [right]), right)


def _combined(test: ast.BoolOp, parts: list[ast.expr]) -> ast.expr | None:
    """Returns the parts under the operator of the test; the only one alone, None if none is."""
    match parts:
        case []:
            return None
        case [part]:
            return part
    return ast.copy_location(ast.BoolOp(test.op, parts), test)


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
    differences = set(filter(None, map(_difference, facts)))
    if not differences:
        return body
    signed = _Signed(differences)
    return [signed.visit(statement) for statement in body]


def _difference(fact: ast.expr) -> str | None:
    """Returns the larger side of a comparison minus the smaller one; None for any other
    condition.
    """
    match fact:
        case ast.Compare(left, [ast.Gt() | ast.GtE()], [right]):
            return f"{operand_text(left)} - {operand_text(right)}"
        case ast.Compare(left, [ast.Lt() | ast.LtE()], [right]):
            return f"{operand_text(right)} - {operand_text(left)}"
    return None


def operand_text(node: ast.expr) -> str:
    """Returns the text of an expression for use in another one."""
    text = ast.unparse(node)
    match node:
        case ast.Name() | ast.Constant() | ast.Attribute() | ast.Subscript() | ast.Call():
            return text
    return f"({text})"


class _Signed(ast.NodeTransformer):
    def __init__(self, differences: set[str]) -> None:
        self._differences = differences

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.slice, ast.Tuple):
            node.slice.elts = [self._sign(element) for element in node.slice.elts]
        else:
            node.slice = self._sign(node.slice)
        return node

    def _sign(self, index: ast.expr) -> ast.expr:
        match index:
            case ast.BinOp(left, ast.Sub(), right):
                if f"{operand_text(left)} - {operand_text(right)}" in self._differences:
                    return nonneg(index)
        return index
