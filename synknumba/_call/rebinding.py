"""Parameters that a function is meant to write in place, and assigns to instead: `new = x.sum(0)`,
nothing written.

An assignment to the bare name binds it to another array; the array that was passed keeps its
values. So do `:=`, the targets of `for` and `with`, and those in a tuple. A function's source shows
some of these mistakes with certainty, and they are refused when it is decorated. Three cases are
certain:

- A statement of the function's outermost level rebinds the parameter, and up to there the array is
  only read.
- The array is only read wherever its name occurs, and the name is rebound somewhere.
- Names are exchanged, as in `u, v = v, u`, and not used afterwards.

A variable that `givens=` binds, or that a call passes, may be written or not, so a local of its
name is right if it is read: `w = w - w.mean()`. An assignment is refused if nothing reads its
value, as in `w = w - g` at the end: it was meant for the variable. For variables that a call passes
this is found when the call is planned.

Everything else is allowed: `y[:] = 2 * x; y = y.ravel()`, `y = y.reshape(-1); y += 1`, `y += 1`,
`fill(y); y = None`. What may give the array another name, or pass it on, counts as a write.
"""

import ast
import dis
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, final

import numpy as np

from synknumba._call.options import FunctionOptions
from synknumba._errors import ArgumentError
from synknumba._ops.tree import flatten
from synknumba._source.access import SIZES
from synknumba._source.definition import Definition, read_code
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable, state_of

# Methods of arrays that return new numbers, whatever the array; lists and dicts have none of them.
_REDUCTIONS = {
    "all",
    "any",
    "argmax",
    "argmin",
    "dot",
    "max",
    "mean",
    "min",
    "prod",
    "std",
    "sum",
    "var",
}
# with these, a variable may be read without its name in the source
_BY_NAME = {
    "eval",
    "exec",
    "locals",
    "vars",
}

MAX_SHOWN = 60  # characters of a value that an error repeats


@final
@dataclass(frozen=True, slots=True)
class _Binding:
    """A place where a function binds names: an assignment or a pair of one, a `:=`, or the target
    of a `for` or `with`.

    Attributes:
        node: the statement, or the expression with `:=`.
        names: the names that it binds.
        value: the value of the only name; None if it is an item or a part of a value.
        source: what the names get their values from.
        end: position where the names have their values.
    """

    node: ast.stmt | ast.NamedExpr
    names: tuple[ast.Name, ...]
    value: ast.expr | None
    source: ast.expr
    end: tuple[int, int]

    @property
    def exchanges(self) -> bool:
        """Whether names are exchanged, as in `u, v = v, u`."""
        match self.node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                new, old = (
                    [one.id for one in several if isinstance(one, ast.Name)]
                    for several in (targets, values)
                )
                return (
                    new != old
                    and sorted(new) == sorted(old)
                    and len(new) == len(targets) == len(values) == len({*new})
                )
        return False


def check_rebinding(name: str, function: Callable[..., Any], options: FunctionOptions) -> None:
    """Raises `ArgumentError` if a function certainly rebinds a parameter that it is to write,
    and does not write to it.
    """
    _check_written(name, function, options)
    given = {
        parameter: (value, "which givens= names") for parameter, value in options.givens.items()
    }
    _check_variables(name, function, options, given)


def _check_written(name: str, function: Callable[..., Any], options: FunctionOptions) -> None:
    is_kernel = options.style == "kernel"
    roles = {
        "outputs": options.outputs if is_kernel else (),
        "updates": options.updates,
        "inout": options.inout,
    }
    written = {parameter: role for role, parameters in roles.items() for parameter in parameters}
    # Other parameters may be trees, of which `y + [a]` contains the arrays themselves.
    arrays = (
        written
        if is_kernel
        else {one for one, (variable, _) in options.updates.items() if not variable.is_tree}
    )
    source = _read(function, written, arrays)
    if source is None:
        return
    for parameter, role in written.items():
        binding = source.lost(parameter)
        if binding is None:
            continue
        where = f"{function.__code__.co_filename}:{binding.node.lineno}"
        what = f"{parameter}, which {role}= names"
        way_out = _way_out(
            parameter, binding, role, is_kernel=is_kernel, is_array=parameter in arrays
        )
        raise ArgumentError(
            f"{name} ({where}) assigns to {what}: this rebinds the name, and writes "
            f"nothing to the array. {way_out}"
        )


def check_passed(
    name: str, function: Callable[..., Any], options: FunctionOptions, values: Mapping[str, Any]
) -> None:
    """Raises `ArgumentError` if a function rebinds a parameter to which a call passes a variable,
    and nothing reads it then.

    `values` are the arguments of the call, by parameter.
    """
    passed = {
        one: (value, "to which the call passes a variable")
        for one, value in values.items()
        if one not in options.givens
    }
    _check_variables(name, function, options, passed)


def _check_variables(
    name: str,
    function: Callable[..., Any],
    options: FunctionOptions,
    values: Mapping[str, tuple[Any, str]],
) -> None:
    """Raises `ArgumentError` for an assignment to a parameter with a variable, or a tree of them,
    that nothing reads.

    `values` are the values of parameters, and in words how they get them.
    """
    held = {
        parameter: (_variable_in(value), value, how) for parameter, (value, how) in values.items()
    }
    variables = {
        one: (found, isinstance(value, Variable), how)
        for one, (found, value, how) in held.items()
        if found is not None
    }
    source = _read(
        function,
        variables,
        {one for one, (found, is_whole, _) in variables.items() if is_whole and not found.is_tree},
    )
    if source is None:
        return
    for parameter, (variable, is_whole, how) in variables.items():
        binding = source.unread(parameter)
        if binding is None:
            continue
        is_array = is_whole and not variable.is_tree
        way_out = _way_out(
            parameter, binding, "givens", is_kernel=options.style == "kernel", is_array=is_array
        )
        if is_array and not variable.root_shapes()[0]:
            way_out = way_out.replace(f"{parameter}[:]", f"{parameter}[...]").replace(
                f"{parameter}[i]", f"{parameter}[()]"
            )
        if any(updated is variable for updated, _ in options.updates.values()):
            way_out = "Accumulate into the parameter that updates= names"
        where = f"{function.__code__.co_filename}:{binding.node.lineno}"
        raise ArgumentError(
            f"{name} ({where}) assigns to {parameter}, {how}, and never reads it again: this "
            f"rebinds the name, and {variable.label} keeps its values. {way_out}"
        )


def _variable_in(value: Any) -> VariableState | None:
    """Returns the state of a value that is a variable, or of the first in a nested one; None if
    there is none.
    """
    return next((state_of(leaf) for leaf in flatten(value)[0] if isinstance(leaf, Variable)), None)


def _way_out(
    parameter: str, binding: _Binding, role: str, *, is_kernel: bool, is_array: bool
) -> str:
    if binding.exchanges:
        names = ", ".join(one.id for one in binding.names)
        swap = f", or exchange variables by synk.swap({names})" if len(binding.names) == 2 else ""
        return f"Pass {names} in the other order at the next call{swap}"
    written = _written(parameter, binding.value, role, is_kernel=is_kernel, is_array=is_array)
    kind = {ast.For: "loop", ast.With: "with statement"}.get(type(binding.node))
    return written if kind is None else f"Give the variable of the {kind} another name. {written}"


def _written(
    parameter: str, value: ast.expr | None, role: str, *, is_kernel: bool, is_array: bool
) -> str:
    shown = "..."
    if value is not None and len(text := ast.unparse(value)) <= MAX_SHOWN:
        shown = text
    if is_kernel and role in {"inout", "givens"}:
        return f"Write to its elements: {parameter}[i] = {shown}"
    if is_kernel:
        return (
            f"Write to its elements: {parameter}[i] = {shown}, or "
            f"cuda.atomic.add({parameter}, i, {shown})"
        )
    if role in {"updates", "givens"} and not is_array:
        return f"Write to its arrays in place, as in {parameter}[key] += ..."
    match value:
        case ast.BinOp(left=ast.Name(id=left), op=op, right=right) if (
            left == parameter and shown != "..."
        ):
            in_place = ast.unparse(ast.AugAssign(ast.Name(parameter, ast.Store()), op, right))
            return f"Write {in_place}, or {parameter}[:] = {shown}"
    added = f"{parameter} += {shown}, or " if role == "updates" else ""
    return f"Write {added}{parameter}[:] = {shown}"


def _stored(function: FunctionType) -> set[str]:
    """Returns the local names that a function's bytecode assigns to, and perhaps others."""
    stored = [
        one.argval
        for one in dis.get_instructions(function.__code__)
        if one.opname.startswith("STORE_")
    ]
    # 3.13 merges instructions
    return {name for value in stored for name in (value if isinstance(value, tuple) else [value])}


def _read(
    function: Callable[..., Any], names: Collection[str], arrays: Collection[str]
) -> "_Assignments | None":
    """Returns the source of a function that assigns to one of these names.

    None for any other function, without source, and if the source has changed since it was
    compiled. `arrays` are parameters that are certainly arrays.
    """
    if not names or not isinstance(function, FunctionType) or _stored(function).isdisjoint(names):
        return None  # most functions; to find the source takes milliseconds
    definition, code = read_code(function.__code__), function.__code__
    if definition is None or definition.parameters != [
        *code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    ]:
        return None
    return _Assignments(definition, function, arrays)


class _Assignments:
    """Finds, in a function's source, assignments after which the array or value that a parameter
    named is not used.
    """

    def __init__(
        self, definition: Definition, function: FunctionType, arrays: Collection[str]
    ) -> None:
        self._body, self._arrays, self._nodes = definition.tree.body, arrays, definition.nodes
        self._parents, self._names, self._mentioned = (
            definition.parents,
            definition.names,
            definition.mentioned,
        )
        self._own = {id(node) for node in definition.own}
        self._local = {
            *definition.stored,
            *function.__code__.co_varnames,
            *function.__code__.co_freevars,
        }
        self._globals = function.__globals__
        self._bindings = [
            one for node in self._nodes if id(node) in self._own for one in _bindings(node)
        ]
        self._is_unclear = any(node.id in _BY_NAME for node in self._names)

    def lost(self, name: str) -> _Binding | None:
        """Returns the binding after which a parameter's array certainly has not been written and
        never will be.

        Also an exchange that nothing notices.
        """
        if self._is_unclear or name in self._mentioned:
            return None
        rebinding = {
            id(target): one for one in self._bindings for target in one.names if target.id == name
        }
        if not rebinding:
            return None
        used = [node for node in self._names if node.id == name and id(node) not in rebinding]
        for statement in self._body:  # those of the outermost level run one after the other
            inside = {id(node) for node in ast.walk(statement)}
            if not all(
                self._only_reads(node, strictly=True) for node in used if id(node) in inside
            ):
                break
            found = next(
                (one for one in rebinding.values() if self._statement(one) is statement), None
            )
            if found is not None:
                return found
        if all(self._only_reads(node, strictly=False) for node in used):
            return min(rebinding.values(), key=lambda one: one.node.lineno)
        return next(
            (one for one in rebinding.values() if one.exchanges and self._is_last(one)), None
        )

    def unread(self, name: str) -> _Binding | None:
        """Returns a binding of a parameter to a value that nothing reads; None if there
        certainly is none.
        """
        if self._is_unclear or name in self._mentioned:
            return None
        used = [
            node for node in self._names if node.id == name and not isinstance(node.ctx, ast.Store)
        ]
        if not all(id(node) in self._own for node in used):
            return None  # an inner function may run later
        only_read = all(self._only_reads(node, strictly=False) for node in used)
        parents = [self._parents.get(id(node)) for node in self._names if node.id == name]
        in_place = any(isinstance(parent, ast.AugAssign) for parent in parents)
        for one in self._bindings:
            if name not in {target.id for target in one.names} or isinstance(
                one.source, ast.Constant
            ):
                continue
            if isinstance(one.node, ast.NamedExpr) and not isinstance(
                self._parents.get(id(one.node)), ast.Expr
            ):
                continue  # the expression around it reads it
            if (
                isinstance(one.node, ast.For | ast.With)
                and used
                and not _contains(one.source, used)
            ):
                continue  # a counter, or a resource, of that name
            if self._is_last(one) and (
                one.exchanges or isinstance(one.value, ast.BinOp) or (only_read and not in_place)
            ):
                return one
        return None

    def _statement(self, binding: _Binding) -> ast.AST | None:
        """Returns the statement of a binding; None for a `:=` inside another expression."""
        if isinstance(binding.node, ast.NamedExpr):
            parent = self._parents.get(id(binding.node))
            return parent if isinstance(parent, ast.Expr) else None
        return binding.node

    def _is_last(self, binding: _Binding) -> bool:
        """Returns whether none of the names that are bound is read afterwards."""
        bound = {one.id for one in binding.names}
        used = [
            node for node in self._names if node.id in bound and not isinstance(node.ctx, ast.Store)
        ]
        return all(_position(node) < binding.end for node in used) and not self._is_repeated(
            binding.node
        )

    def _is_repeated(self, node: ast.AST) -> bool:
        """Returns whether a statement is in a loop, where the next iteration may read what it
        assigns.
        """
        while (parent := self._parents.get(id(node))) is not None and not isinstance(
            parent, ast.For | ast.While
        ):
            node = parent
        return parent is not None

    def _only_reads(self, name: ast.Name, *, strictly: bool) -> bool:
        """Returns whether an occurrence of a name reads numbers or sizes, and leaves the array
        without another name.

        With `strictly`, also not as an element of a list, as in `y = y + [a]`.
        """
        node: ast.expr = name
        while (
            isinstance(parent := self._parents.get(id(node)), ast.Subscript)
            and parent.value is node
        ):
            node = parent
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            return False
        match parent:
            case ast.UnaryOp() | ast.Compare() | ast.Subscript():  # there it is part of an index
                return True
            case ast.Return():
                return id(parent) in self._own
            # these also join lists and dicts
            case ast.BinOp(op=ast.Add() | ast.Mult() | ast.BitOr()):
                return name.id in self._arrays or (not strictly and self._goes_to(parent, name.id))
            case ast.BinOp():
                return True
            case ast.Attribute(attr=attribute, ctx=ast.Load()):
                return attribute in SIZES or (
                    attribute in _REDUCTIONS and self._is_reduction(parent)
                )
            case ast.Call():
                return self._returns_numbers(parent)
        return False

    def _goes_to(self, node: ast.AST, name: str) -> bool:
        """Returns whether the result of some arithmetic is assigned to a name, and to nothing
        else.
        """
        while isinstance(parent := self._parents.get(id(node)), ast.BinOp | ast.UnaryOp):
            node = parent
        match parent:
            case (
                ast.Assign(targets=[ast.Name(id=target)])
                | ast.AnnAssign(target=ast.Name(id=target))
            ):
                return target == name
        return False

    def _is_reduction(self, method: ast.Attribute) -> bool:
        match self._parents.get(id(method)):
            case ast.Call(func=function, args=args, keywords=keywords) if function is method:
                return len(args) <= 1 and all(
                    one.arg in {"axis", "keepdims", "dtype", "ddof"} for one in keywords
                )
        return False

    def _returns_numbers(self, call: ast.Call) -> bool:
        """Returns whether a call is `len(y)`, or a NumPy ufunc's that is given no array to write
        to.
        """
        match call:
            case ast.Call(func=ast.Name(id="len"), args=[_], keywords=[]):
                return "len" not in self._local and "len" not in self._globals
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=module), attr=attribute),
                args=args,
                keywords=[],
            ):
                is_numpy = module not in self._local and self._globals.get(module) is np
                function = getattr(np, attribute, None) if is_numpy else None
                has_starred = any(isinstance(one, ast.Starred) for one in args)
                return (
                    isinstance(function, np.ufunc) and not has_starred and len(args) <= function.nin
                )
        return False


def _position(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _contains(expression: ast.expr, names: Collection[ast.Name]) -> bool:
    inside = {id(node) for node in ast.walk(expression)}
    return any(id(name) in inside for name in names)


def _bindings(node: ast.AST) -> Iterator[_Binding]:
    """Yields the bindings of a statement, or of an expression with `:=`, but not of what is
    inside.
    """
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if (
            _are_pairs(targets, values)
        ):
            exchanged = _Binding(node, tuple(_names(node.targets)), None, node.value, _end(node))
            if exchanged.exchanges:
                yield exchanged
                return
            for target, value in zip(targets, values, strict=True):
                yield from _bound(node, [target], value, _end(node))
        case ast.Assign(targets=targets, value=value):
            yield from _bound(node, targets, value, _end(node))
        case (
            ast.AnnAssign(target=target, value=ast.expr() as value)
            | ast.NamedExpr(target=target, value=value)
        ):
            yield from _bound(node, [target], value, _end(node))
        case ast.For(target=target, iter=source):
            yield from _bound(node, [target], source, _end(source))
        case ast.With(items=items):
            for item in items:
                if item.optional_vars is not None:
                    yield from _bound(
                        node, [item.optional_vars], item.context_expr, _end(item.optional_vars)
                    )


def _are_pairs(targets: list[ast.expr], values: list[ast.expr]) -> bool:
    return len(targets) == len(values) and not any(
        isinstance(one, ast.Starred) for one in (*targets, *values)
    )


def _bound(
    node: ast.stmt | ast.NamedExpr, targets: list[ast.expr], source: ast.expr, end: tuple[int, int]
) -> Iterator[_Binding]:
    names = tuple(_names(targets))
    if names:
        is_value = all(isinstance(one, ast.Name) for one in targets) and not isinstance(
            node, ast.For | ast.With
        )
        yield _Binding(node, names, source if is_value else None, source, end)


def _names(targets: list[ast.expr]) -> Iterator[ast.Name]:
    """Yields the bare names among targets."""
    for target in targets:
        match target:
            case ast.Name():
                yield target
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                yield from _names(elements)
            case ast.Starred(value=value):
                yield from _names([value])
