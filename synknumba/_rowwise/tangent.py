"""Forward mode by source: a function becomes one that returns its value and tangents.

    def f(x, beta):            def f_with_tangents(d0_beta, x, beta):
        y = beta * x               t = beta * x;  d0_t = x * d0_beta;  y, d0_y = t, d0_t
        return y                   return y, d0_y

A variable has a tangent in the directions in which one of its assignments has (a fixed point over all
of them); what has none is left as it is written, conditions among it: they take the branch of the
value. Each value is computed once. Functions that are called are treated alike, once for each set of
arguments with tangents. The method is textbook: A. Griewank, A. Walther, *Evaluating Derivatives*
(2008), chapter 3.
"""  # noqa: E501

import ast
import builtins
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any, TypeAlias, final

import numpy as np
from numba import njit
from numba.core import types

from synknumba._errors import KernelError
from synknumba._rowwise.generate import define, kernel_name
from synknumba._rowwise.slopes import (
    OPERATORS,
    STEPS,
    number,
    power,
    rules,
    slope_text,
)
from synknumba._source.definition import Definition
from synknumba._source.kernel_facts import KernelFacts
from synknumba.simt.internals import (
    cuda_module,
    is_device_function,
    is_jitted,
    read_definition,
)

Directions: TypeAlias = frozenset[int]
"""Numbers of the parameters that something depends on."""
Active: TypeAlias = Mapping[str, Directions]

Callees: TypeAlias = dict[Any, Any]
"""Functions with tangents, by the plain function and the directions of its parameters."""

_NONE: Directions = frozenset()
_CASTS = {float, np.float32, np.float64}
_SIGNS = {"1": "", "-1": "-"}
_STORED = "an element or in a statement that has no derivative; keep it in a variable"
_JUMPS = (
    "of a value that depends on a parameter jumps, and is constant in between, so its derivative "
    "misses the jumps; leave it out of the function and pass score=, or compare in an if"
)


@final
@dataclass(frozen=True, slots=True)
class Value:
    """An expression in the new function.

    Attributes:
        text: the expression.
        tangents: names of its tangents.
        parts: those of a tuple that is written as such.
    """

    text: str
    tangents: Mapping[int, str]
    parts: "tuple[Value, ...]" = ()


@final
class Writer:
    """Writes a function with tangents.

    Args:
        function: a plain function.
        active: parameters with tangents, and their directions.
        what: what is differentiated, for messages.
        callees: functions that are called, made once.
        result: returns what to return for the value of a `return` statement.

    Raises:
        KernelError: its source is not available, or something in it has no derivative.
    """

    def __init__(
        self,
        function: FunctionType,
        active: Active,
        what: str,
        callees: Callees,
        result: "Callable[[Writer, Value], str]",
    ) -> None:
        self._source = read_definition(function)
        self._what, self._callees = what, callees
        self._result = result
        self._lines: list[str] = []
        self._indent = "    " * 2
        self._temporaries = 0
        self.outside: dict[str, Any] = {"synk_number": number, "synk_math": math}
        self._facts = KernelFacts(Definition(self._source.tree))
        self.prefix = "synk_"
        while any(name.startswith(self.prefix + "d") for name in self._facts.local):
            self.prefix += "d_"  # of a derivative
        self._given = active
        self._active = dict(active)
        self._spread()
        self._check()

    def function(self, first: Sequence[str] = ()) -> FunctionType:
        """Returns the new function, with further parameters in front of its own."""
        plain, tree = self._source.function, self._source.tree
        for name in self._source.params:
            self._make_zeros(name, self._given.get(name, _NONE))
        for statement in tree.body:
            self._statement(statement)
        parameters = tree.args.posonlyargs or tree.args.args
        parameters[:0] = [ast.arg(name) for name in first]
        name = kernel_name("tangents_of", plain.__name__)
        # its names from outside become closure variables
        outside = ", ".join({**dict.fromkeys(plain.__code__.co_freevars), **self.outside})
        text = "\n".join(
            [
                f"def synk_around({outside}):",
                f"    def {name}({ast.unparse(tree.args)}):",
                *self._lines,
                f"    return {name}\n",
            ]
        )
        around = define(text, "synk_around", "derivative", {})
        return self._closed(around, name)

    def _closed(self, around: Any, name: str) -> FunctionType:
        """Returns the inner function, with the globals and closure variables of the user's."""
        plain = self._source.function
        cells = dict(zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True))
        cells |= {key: CellType(value) for key, value in self.outside.items()}
        (code,) = (part for part in around.__code__.co_consts if isinstance(part, CodeType))
        closure = tuple(cells[key] for key in code.co_freevars)
        return FunctionType(code, plain.__globals__, name, plain.__defaults__, closure)

    def tangent_of(self, name: str, direction: int) -> str:
        """Returns the name of a variable's tangent."""
        return f"{self.prefix}d{direction}_{name}"

    def tangent(self, value: Value, direction: int) -> str:
        """Returns the tangent of a value in a direction, 0 where it does not depend on it."""
        if direction in value.tangents:
            return value.tangents[direction]
        if value.parts:
            return _tuple(self.tangent(part, direction) for part in value.parts)
        return f"synk_number({value.text}, 0.0)"

    # ---- what depends on the parameters

    def _spread(self) -> None:
        """Finds the directions of all variables."""
        before = None
        while self._active != before:
            before = dict(self._active)
            for binding in self._facts.bindings:
                name, directions = binding.name.id, self._directions(binding.source)
                if directions:
                    self._active[name] = self._active.get(name, _NONE) | directions

    def _directions(self, node: ast.AST) -> Directions:
        match node:
            case ast.Name(id=name):
                return self._active.get(name, _NONE)
            # the latter is a constant in a derivative
            case ast.Compare() | ast.Call(func=ast.Name(id="synk_number")):
                return _NONE
            case ast.IfExp(body=body, orelse=orelse):
                return self._directions(body) | self._directions(orelse)
        return _NONE.union(*map(self._directions, ast.iter_child_nodes(node)))

    def _check(self) -> None:
        for use in self._facts.element_uses():
            if use.is_write:
                raise self._refusal(
                    use.node, f"it writes to {use.name.id}; return the number instead"
                )
        for node in self._facts.definition.nodes:
            if isinstance(node, ast.NamedExpr | ast.FunctionDef | ast.Lambda) and self._directions(
                node
            ):
                raise self._refusal(
                    node,
                    "an inner function, or := , has a value that depends on a parameter; write "
                    "a device function, or the assignment as a statement",
                )

    def _refusal(self, node: ast.AST, reason: str) -> KernelError:
        return self._source.error(node, f"{self._what} cannot be made: {reason}")

    # ---- statements

    def line(self, text: str) -> None:
        """Writes a statement."""
        self._lines += [self._indent + line for line in text.splitlines()]

    def _inside(
        self, header: str, statements: Sequence[ast.stmt], targets: Iterable[str] = ()
    ) -> None:
        """Writes a statement with others inside, which may begin by binding names."""
        if not statements:
            return
        self.line(header)
        before = self._indent
        self._indent += "    "
        for name in targets:
            self._make_zeros(name)
        for statement in statements:
            self._statement(statement)
        self._indent = before

    def _make_zeros(self, name: str, given: Directions = _NONE) -> None:
        """Writes the tangents of a name that has got a value without them."""
        for k in sorted(self._active.get(name, _NONE) - given):
            self.line(f"{self.tangent_of(name, k)} = synk_number({name}, 0.0)")

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case (
                ast.If(test=test, body=body, orelse=orelse)
                | ast.While(test=test, body=body, orelse=orelse)
            ):
                self._inside(f"{type(node).__name__.lower()} {ast.unparse(test)}:", body)
                self._inside("else:", orelse)
            case ast.For(target=target, iter=values, body=body, orelse=orelse):
                if self._directions(values):
                    raise self._refusal(
                        node,
                        f"{ast.unparse(values)} depends on a parameter; loop over what does not",
                    )
                header = f"for {ast.unparse(target)} in {ast.unparse(values)}:"
                self._inside(header, body, _names(target))
                self._inside("else:", orelse)
            case ast.Return(value=ast.expr() as value):
                result = self._result(self, self._held(value))
                self.line(f"return {result}")
            case ast.Assign(targets=targets, value=value) if not any(
                isinstance(target, ast.Subscript) for target in targets
            ):
                right = self._held(value)
                for target in targets:
                    self._assign(target, right)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._held(value))
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                total = ast.BinOp(ast.Name(name, ast.Load()), op, value)
                total = ast.fix_missing_locations(ast.copy_location(total, node))
                self._assign(target, self._held(total))
            case ast.Expr(value=value):
                self.line(self._value(value).text)
            case _:
                if not isinstance(node, ast.Assert | ast.Raise) and self._directions(node):
                    raise self._refusal(
                        node, f"a value that depends on a parameter is in {_STORED}"
                    )
                self.line(ast.unparse(node))

    def _assign(self, target: ast.expr, value: Value) -> None:
        names, values = zip(*self._bound(target, value), strict=True)
        self.line(f"{', '.join(names)} = {', '.join(values)}")

    def _bound(self, target: ast.expr, value: Value) -> Iterator[tuple[str, str]]:
        """Yields the names to assign, with what each gets, tangents among them."""
        match target:
            case ast.Name(id=name):
                yield name, value.text
                for k in sorted(self._active.get(name, _NONE)):
                    yield self.tangent_of(name, k), self.tangent(value, k)
            case ast.Tuple(elts=targets):
                for position, part in enumerate(targets):
                    yield from self._bound(part, item_of(value, position))
            case _:
                raise self._refusal(target, "this assignment has no derivative; assign to names")

    # ---- expressions

    def _held(self, node: ast.expr) -> Value:
        """Writes an expression; returns a value that can be read several times."""
        value = self._value(node)
        if value.parts:
            return value
        return Value(self._atom(value.text), value.tangents)

    def _atom(self, text: str) -> str:
        """Returns a name as it is, and a name for anything else."""
        return text if text.isidentifier() else self._temporary(text)

    def _temporary(self, text: str) -> str:
        name = self._new_name()
        self.line(f"{name} = {text}")
        return name

    def _new_name(self) -> str:
        self._temporaries += 1
        return f"{self.prefix}t{self._temporaries}"

    def _value(self, node: ast.expr) -> Value:
        """Writes what an expression needs; returns its value with its tangents."""
        directions = self._directions(node)
        if isinstance(node, ast.Tuple):
            parts = tuple(map(self._held, node.elts))
            whole = Value("", {}, parts)
            tangents = {k: self.tangent(whole, k) for k in directions}
            return Value(_tuple(part.text for part in parts), tangents, parts)
        if not directions:
            return Value(ast.unparse(node), {})
        match node:
            case ast.Name(id=name):
                return Value(name, {k: self.tangent_of(name, k) for k in directions})
            case ast.IfExp():
                return self._chosen(node, directions)
            case ast.Subscript(value=values, slice=index):
                if self._directions(index):
                    raise self._refusal(
                        node, "an index depends on a parameter; it has no derivative"
                    )
                return _element(self._held(values), ast.unparse(index))
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() | float() as n)):
                return self._applied(f"{{}} ** {n}", power(n), [left])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return self._applied(*OPERATORS[type(op)], [left, right])
            case ast.UnaryOp(op=sign, operand=operand) if type(sign) in OPERATORS:
                return self._applied(*OPERATORS[type(sign)], [operand])
            case ast.BinOp(op=ast.FloorDiv() | ast.Mod()):
                raise self._refusal(node, f"this {_JUMPS}")
            case ast.Call():
                return self._called(node)
        raise self._refusal(
            node, f"{ast.unparse(node)} has no derivative; write it by arithmetic and if"
        )

    def _chosen(self, node: ast.IfExp, directions: Directions) -> Value:
        """Writes a conditional expression as a statement."""
        name = self._new_name()
        self._active[name] = directions
        target: list[ast.expr] = [ast.Name(name, ast.Store())]
        body, orelse = ast.Assign(target, node.body), ast.Assign(target, node.orelse)
        chosen = ast.copy_location(ast.If(node.test, [body], [orelse]), node)
        self._statement(ast.fix_missing_locations(chosen))
        return self._value(ast.Name(name, ast.Load()))

    def _applied(self, form: str, slopes: Sequence[str], operands: Sequence[ast.expr]) -> Value:
        """Writes a function of numbers; returns it with Σ slope · tangent of the operands."""
        values = [self._held(operand) for operand in operands]
        names = tuple(value.text for value in values)
        result = self._temporary(form.format(*names))
        terms: dict[int, list[str]] = {}
        for slope, value in zip(slopes, values, strict=True):
            sign = _SIGNS.get(slope)
            if sign is None and value.tangents:
                sign = self._atom(slope_text(slope, names, result)) + " * "
            for k, tangent in value.tangents.items():
                terms.setdefault(k, []).append(f"{sign}{tangent}")
        return Value(result, {k: self._temporary(" + ".join(terms[k])) for k in terms})

    def _called(self, node: ast.Call) -> Value:
        function, name = self._object(node.func), ast.unparse(node.func)
        if node.keywords or any(isinstance(part, ast.Starred) for part in node.args):
            raise self._refusal(
                node, f"{name} is called with keywords or *; pass arguments by position"
            )
        if is_jitted(function):
            return self._called_device_function(node, function)
        if getattr(function, "__module__", None) == "synknumba.random":
            raise self._refusal(
                node, f"what {name} gets depends on a parameter; seeds, rows and draws are integers"
            )
        if _is_step(function):
            raise self._refusal(node, f"{name} {_JUMPS}")
        if function in _CASTS or isinstance(function, types.Float):
            value = self._held(node.args[0])
            tangents = {k: f"{name}({tangent})" for k, tangent in value.tangents.items()}
            return Value(f"{name}({value.text})", tangents)
        if function in {max, min, np.maximum, np.minimum}:
            return self._extreme(name, node.args)
        slopes = rules().get(function, ())
        if len(slopes) != len(node.args):
            raise self._refusal(
                node,
                f"{name} has no derivative here; write it by functions of math and arithmetic, in "
                "a function decorated with @numba.njit or @cuda.jit(device=True)",
            )
        commas = ", ".join(["{}"] * len(slopes))
        return self._applied(f"{name}({commas})", slopes, node.args)

    def _extreme(self, name: str, operands: Sequence[ast.expr]) -> Value:
        """Writes max or min, whose tangents are those of the operand that it returns."""
        values = [self._held(operand) for operand in operands]
        result = self._temporary(f"{name}({', '.join(value.text for value in values)})")
        tangents = {}
        for k in _NONE.union(*(value.tangents for value in values)):
            choice = self.tangent(values[-1], k)
            for value in reversed(values[:-1]):
                choice = f"({self.tangent(value, k)} if {value.text} == {result} else {choice})"
            tangents[k] = self._temporary(choice)
        return Value(result, tangents)

    def _called_device_function(self, node: ast.Call, function: Any) -> Value:
        values = list(map(self._held, node.args))
        active = {}
        for name, value in zip(plain_function(function).__code__.co_varnames, values, strict=False):
            if value.tangents:
                active[name] = frozenset(value.tangents)
        called = f"{self.prefix}f{len(self.outside)}"
        self.outside[called] = with_tangents(function, active, self._what, self._callees)
        result = self._new_name()
        tangents = {k: self.tangent_of(result, k) for k in sorted_directions(active)}
        passed = [value.tangents[k] for value in values for k in sorted(value.tangents)]
        passed += [value.text for value in values]
        self.line(f"{', '.join([result, *tangents.values()])} = {called}({', '.join(passed)})")
        return Value(result, tangents)

    def _object(self, node: ast.expr) -> Any:
        """Returns what a name outside the function stands for; None if that is not known."""
        match node:
            case ast.Name(id=name) if name not in self._facts.local:
                return self._source.scope.get(name, getattr(builtins, name, None))
            case ast.Attribute(value=value, attr=attribute):
                return getattr(self._object(value), attribute, None)
        return None


def with_tangents(function: Any, active: Active, what: str, callees: Callees) -> Any:
    """Returns a device function of tangents (by parameter and direction) and arguments, which
    returns the value and the tangents in all directions.
    """
    plain = plain_function(function)

    def result(writer: Writer, value: Value) -> str:
        return ", ".join(
            [value.text, *(writer.tangent(value, k) for k in sorted_directions(active))]
        )

    key = plain, tuple(active.items())
    if key not in callees:
        callees[key] = None
        writer = Writer(plain, active, what, callees, result)
        first = [writer.tangent_of(name, k) for name in active for k in sorted(active[name])]
        callees[key] = _as_device_function(writer.function(first), function)
    if callees[key] is None:
        raise KernelError(
            f"{what}: {plain.__qualname__} calls itself, and such functions have no derivative "
            "here; write a loop"
        )
    return callees[key]


def sorted_directions(active: Active) -> list[int]:
    """Returns the directions of all names."""
    return sorted(_NONE.union(*active.values()))


def plain_function(function: Any) -> FunctionType:
    """Returns the Python function of a device function, of Numba's simulator too."""
    plain = getattr(function, "py_func", None) or getattr(function, "fn", function)
    if not isinstance(plain, FunctionType):
        raise KernelError(f"a function of numbers is required, got {function!r}")
    return plain


def _as_device_function(plain: FunctionType, like: Any) -> Any:
    if is_device_function(like):
        return cuda_module().jit(device=True)(plain)
    return njit(plain)


def _is_step(function: Any) -> bool:
    """Returns whether a function is constant but for jumps."""
    if isinstance(function, type):
        return issubclass(function, int | np.integer)
    return getattr(function, "__name__", "") in STEPS


def _tuple(parts: Iterable[str]) -> str:
    return f"({''.join(f'{part}, ' for part in parts)})"


def item_of(value: Value, position: int) -> Value:
    """Returns an item of a tuple."""
    if value.parts:
        return value.parts[position]
    return _element(value, position)


def _element(value: Value, index: object) -> Value:
    tangents = {k: f"{tangent}[{index}]" for k, tangent in value.tangents.items()}
    return Value(f"{value.text}[{index}]", tangents)


def _names(target: ast.expr) -> Iterator[str]:
    """Yields the names that a target binds."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
