"""Parameters that a function is meant to write in place, and assigns to instead: `new = x.sum(0)`, nothing written.

An assignment to the bare name binds it to another array; the array that was passed keeps its values. A function's source shows
some of these mistakes with certainty, and they are refused when it is decorated. Two cases are certain:

- A statement of the function's outermost level rebinds the parameter, and up to there the array is only read.
- The array is only read wherever its name occurs, and the name is rebound somewhere.

A variable that `givens=` binds, or that a call passes, may be written or not, so a local of its name is right if it is read:
`w = w - w.mean()`. An assignment is refused if nothing reads its value, as in `w = w - g` at the end: it was meant for the
variable. For variables that a call passes this is found when the call is planned.

Everything else is allowed: `y[:] = 2 * x; y = y.ravel()`, `y = y.reshape(-1); y += 1`, `y += 1`, `fill(y); y = None`. What may
give the array another name, or pass it on, counts as a write.
"""

import ast
import dis
from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any

import numpy as np

from synknumba._call.access import SIZES
from synknumba._call.definition import Definition, read_code
from synknumba._call.options import FunctionOptions
from synknumba._errors import ArgumentError
from synknumba._ops.tree import flatten
from synknumba._variables.state import VariableState
from synknumba._variables.variable import Variable, state_of

# Methods of arrays that return new numbers, whatever the array; lists and dicts have none of them.
_REDUCTIONS = {"all", "any", "argmax", "argmin", "dot", "max", "mean", "min", "prod", "std", "sum", "var"}
_BY_NAME = {"eval", "exec", "locals", "vars"}  # with these, a variable may be read without its name in the source

MAX_SHOWN = 60  # characters of a value that an error repeats


def check_rebinding(name: str, function: Callable[..., Any], options: FunctionOptions) -> None:
    """Raises `ArgumentError` if a function certainly rebinds a parameter that it is to write, and does not write to it."""
    _check_written(name, function, options)
    given = {parameter: (value, "which givens= names") for parameter, value in options.givens.items()}
    _check_variables(name, function, options, given)


def _check_written(name: str, function: Callable[..., Any], options: FunctionOptions) -> None:
    is_kernel = options.style == "kernel"
    roles = {"outputs": options.outputs if is_kernel else (), "updates": options.updates, "inout": options.inout}
    written = {parameter: role for role, parameters in roles.items() for parameter in parameters}
    # Other parameters may be trees, of which `y + [a]` contains the arrays themselves.
    arrays = written if is_kernel else {one for one, (variable, _) in options.updates.items() if not variable.is_tree}
    source = _read(function, written, arrays)
    if source is None:
        return
    for parameter, role in written.items():
        statement = source.lost(parameter)
        if statement is None:
            continue
        where = f"{function.__code__.co_filename}:{statement.lineno}"
        what = f"{parameter}, which {role}= names"
        way_out = _way_out(parameter, statement, role, is_kernel=is_kernel, is_array=parameter in arrays)
        raise ArgumentError(
            f"{name} ({where}) assigns to {what}: this rebinds the name, and writes nothing to the array. {way_out}"
        )


def check_passed(name: str, function: Callable[..., Any], options: FunctionOptions, values: Mapping[str, Any]) -> None:
    """Raises `ArgumentError` if a function rebinds a parameter to which a call passes a variable, and nothing reads it then.

    `values` are the arguments of the call, by parameter.
    """
    passed = {one: (value, "to which the call passes a variable") for one, value in values.items() if one not in options.givens}
    _check_variables(name, function, options, passed)


def _check_variables(
    name: str, function: Callable[..., Any], options: FunctionOptions, values: Mapping[str, tuple[Any, str]]
) -> None:
    """Raises `ArgumentError` for an assignment to a parameter with a variable, or a tree of them, that nothing reads.

    `values` are the values of parameters, and in words how they get them.
    """
    held = {parameter: (_variable_in(value), value, how) for parameter, (value, how) in values.items()}
    variables = {
        one: (found, isinstance(value, Variable), how) for one, (found, value, how) in held.items() if found is not None
    }
    source = _read(
        function, variables, {one for one, (found, is_whole, _) in variables.items() if is_whole and not found.is_tree}
    )
    if source is None:
        return
    for parameter, (variable, is_whole, how) in variables.items():
        statement = source.unread(parameter)
        if statement is None:
            continue
        is_array = is_whole and not variable.is_tree
        way_out = _way_out(parameter, statement, "givens", is_kernel=options.style == "kernel", is_array=is_array)
        if is_array and not variable.root_shapes()[0]:
            way_out = way_out.replace(f"{parameter}[:]", f"{parameter}[...]").replace(f"{parameter}[i]", f"{parameter}[()]")
        if any(updated is variable for updated, _ in options.updates.values()):
            way_out = "Accumulate into the parameter that updates= names"
        where = f"{function.__code__.co_filename}:{statement.lineno}"
        raise ArgumentError(
            f"{name} ({where}) assigns to {parameter}, {how}, and never reads it again: this rebinds the "
            f"name, and {variable.label} keeps its values. {way_out}"
        )


def _variable_in(value: Any) -> VariableState | None:
    """Returns the state of a value that is a variable, or of the first in a nested one; None if there is none."""
    return next((state_of(leaf) for leaf in flatten(value)[0] if isinstance(leaf, Variable)), None)


def _way_out(parameter: str, statement: ast.Assign | ast.AnnAssign, role: str, *, is_kernel: bool, is_array: bool) -> str:
    value, shown = statement.value, "..."
    is_single = isinstance(statement, ast.AnnAssign) or isinstance(statement.targets[0], ast.Name)
    if value is not None and is_single and len(text := ast.unparse(value)) <= MAX_SHOWN:
        shown = text
    if is_kernel and role in {"inout", "givens"}:
        return f"Write to its elements: {parameter}[i] = {shown}"
    if is_kernel:
        return f"Write to its elements: {parameter}[i] = {shown}, or cuda.atomic.add({parameter}, i, {shown})"
    if role in {"updates", "givens"} and not is_array:
        return f"Write to its arrays in place, as in {parameter}[key] += ..."
    match value:
        case ast.BinOp(left=ast.Name(id=left), op=op, right=right) if left == parameter and shown != "...":
            in_place = ast.unparse(ast.AugAssign(ast.Name(parameter, ast.Store()), op, right))
            return f"Write {in_place}, or {parameter}[:] = {shown}"
    added = f"{parameter} += {shown}, or " if role == "updates" else ""
    return f"Write {added}{parameter}[:] = {shown}"


def _stored(function: FunctionType) -> set[str]:
    """Returns the local names that a function's bytecode assigns to, and perhaps others."""
    stored = [one.argval for one in dis.get_instructions(function.__code__) if one.opname.startswith("STORE_")]
    return {name for value in stored for name in (value if isinstance(value, tuple) else [value])}  # 3.13 merges instructions


def _read(function: Callable[..., Any], names: Collection[str], arrays: Collection[str]) -> "_Assignments | None":
    """Returns the source of a function that assigns to one of these names.

    None for any other function, without source, and if the source has changed since it was compiled. `arrays` are parameters
    that are certainly arrays.
    """
    if not names or not isinstance(function, FunctionType) or _stored(function).isdisjoint(names):
        return None  # most functions; to find the source takes milliseconds
    definition, code = read_code(function.__code__), function.__code__
    if definition is None or definition.parameters != [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]:
        return None
    return _Assignments(definition, function, arrays)


class _Assignments:
    """Finds, in a function's source, assignments after which the array or value that a parameter named is not used."""

    def __init__(self, definition: Definition, function: FunctionType, arrays: Collection[str]) -> None:
        self._body, self._arrays, self._nodes = definition.tree.body, arrays, definition.nodes
        self._parents, self._names, self._mentioned = definition.parents, definition.names, definition.mentioned
        self._own = {id(node) for node in definition.own}
        self._local = {*definition.stored, *function.__code__.co_varnames, *function.__code__.co_freevars}
        self._globals = function.__globals__
        self._is_unclear = any(node.id in _BY_NAME for node in self._names)

    def lost(self, name: str) -> ast.Assign | ast.AnnAssign | None:
        """Returns the assignment after which a parameter's array certainly has not been written and never will be."""
        if self._is_unclear or name in self._mentioned:
            return None
        rebinding = {id(target): node for node in self._assignments() for target in _targets(node) if target.id == name}
        if not rebinding:
            return None
        used = [node for node in self._names if node.id == name and id(node) not in rebinding]
        for statement in self._body:  # those of the outermost level run one after the other
            inside = {id(node) for node in ast.walk(statement)}
            if not all(self._only_reads(node, strictly=True) for node in used if id(node) in inside):
                break
            if statement in rebinding.values():
                return statement  # type: ignore[return-value]
        only_read = all(self._only_reads(node, strictly=False) for node in used)
        return min(rebinding.values(), key=lambda node: node.lineno) if only_read else None

    def unread(self, name: str) -> ast.Assign | ast.AnnAssign | None:
        """Returns an assignment to a parameter whose value nothing reads; None if none certainly is one."""
        if self._is_unclear or name in self._mentioned:
            return None
        used = [node for node in self._names if node.id == name and not isinstance(node.ctx, ast.Store)]
        if not all(id(node) in self._own for node in used):
            return None  # an inner function may run later
        only_read = all(self._only_reads(node, strictly=False) for node in used)
        parents = [self._parents.get(id(node)) for node in self._names if node.id == name]
        in_place = any(isinstance(parent, ast.AugAssign) for parent in parents)
        for statement in self._assignments():
            if {target.id for target in _targets(statement)} != {name} or isinstance(statement.value, ast.Constant):
                continue
            is_last = all(_position(node) < _end(statement) for node in used) and not self._is_repeated(statement)
            if is_last and (isinstance(statement.value, ast.BinOp) or (only_read and not in_place)):
                return statement
        return None

    def _is_repeated(self, node: ast.AST) -> bool:
        """Returns whether a statement is in a loop, where the next iteration may read what it assigns."""
        while (parent := self._parents.get(id(node))) is not None and not isinstance(parent, ast.For | ast.While):
            node = parent
        return parent is not None

    def _assignments(self) -> list[ast.Assign | ast.AnnAssign]:
        nodes = [node for node in self._nodes if id(node) in self._own]
        return [node for node in nodes if isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value)]

    def _only_reads(self, name: ast.Name, *, strictly: bool) -> bool:
        """Returns whether an occurrence of a name reads numbers or sizes, and leaves the array without another name.

        With `strictly`, also not as an element of a list, as in `y = y + [a]`.
        """
        node: ast.expr = name
        while isinstance(parent := self._parents.get(id(node)), ast.Subscript) and parent.value is node:
            node = parent
        if not isinstance(getattr(node, "ctx", None), ast.Load):
            return False
        match parent:
            case ast.UnaryOp() | ast.Compare() | ast.Subscript():  # there it is part of an index
                return True
            case ast.Return():
                return id(parent) in self._own
            case ast.BinOp(op=ast.Add() | ast.Mult() | ast.BitOr()):  # these also join lists and dicts
                return name.id in self._arrays or (not strictly and self._goes_to(parent, name.id))
            case ast.BinOp():
                return True
            case ast.Attribute(attr=attribute, ctx=ast.Load()):
                return attribute in SIZES or (attribute in _REDUCTIONS and self._is_reduction(parent))
            case ast.Call():
                return self._returns_numbers(parent)
        return False

    def _goes_to(self, node: ast.AST, name: str) -> bool:
        """Returns whether the result of some arithmetic is assigned to a name, and to nothing else."""
        while isinstance(parent := self._parents.get(id(node)), ast.BinOp | ast.UnaryOp):
            node = parent
        match parent:
            case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)):
                return target == name
        return False

    def _is_reduction(self, method: ast.Attribute) -> bool:
        match self._parents.get(id(method)):
            case ast.Call(func=function, args=args, keywords=keywords) if function is method:
                return len(args) <= 1 and all(one.arg in {"axis", "keepdims", "dtype", "ddof"} for one in keywords)
        return False

    def _returns_numbers(self, call: ast.Call) -> bool:
        """Returns whether a call is `len(y)`, or a NumPy ufunc's that is given no array to write to."""
        match call:
            case ast.Call(func=ast.Name(id="len"), args=[_], keywords=[]):
                return "len" not in self._local and "len" not in self._globals
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=attribute), args=args, keywords=[]):
                is_numpy = module not in self._local and self._globals.get(module) is np
                function = getattr(np, attribute, None) if is_numpy else None
                has_starred = any(isinstance(one, ast.Starred) for one in args)
                return isinstance(function, np.ufunc) and not has_starred and len(args) <= function.nin
        return False


def _position(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(statement: ast.stmt) -> tuple[int, int]:
    return statement.end_lineno or statement.lineno, statement.end_col_offset or 0


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.Name]:
    """Returns the bare names that an assignment binds."""
    targets = [*statement.targets] if isinstance(statement, ast.Assign) else [statement.target]
    found = []
    while targets:
        match targets.pop():
            case ast.Name() as name:
                found.append(name)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                targets = [*targets, *elements]
            case ast.Starred(value=value):
                targets = [*targets, value]
    return found
