"""Assignments after which the array or value that a parameter named is certainly not used."""

import ast
import dis
from collections.abc import Callable, Collection
from types import FunctionType
from typing import Any, final

import numpy as np

from synknumba._source.kernel_facts import Binding, KernelFacts, Kind, Use, facts_of_code

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
_BY_NAME = {"eval", "exec", "locals", "vars"}


def find_assignments(
    function: Callable[..., Any], names: Collection[str], arrays: Collection[str]
) -> "LostAssignments | None":
    """Returns the assignments of a function that assigns to one of these names.

    None for any other function, without source, and if the source has changed since it was
    compiled. `arrays` are parameters that are certainly arrays.
    """
    if not names or not isinstance(function, FunctionType) or _stored(function).isdisjoint(names):
        return None  # most functions; to find the source takes milliseconds
    code = function.__code__
    facts = facts_of_code(code)
    parameters = [*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]]
    if facts is None or facts.definition.parameters != parameters:
        return None
    return LostAssignments(facts, function, arrays)


def _stored(function: FunctionType) -> set[str]:
    """Returns the local names that a function's bytecode assigns to, and perhaps others."""
    stored = set[str]()
    for instruction in dis.get_instructions(function.__code__):
        if instruction.opname.startswith("STORE_"):
            names = instruction.argval
            if not isinstance(names, tuple):  # two names in an instruction of 3.13
                names = [names]
            stored.update(names)
    return stored


@final
class LostAssignments:
    """Finds assignments to parameters that were meant for the arrays or variables."""

    def __init__(self, facts: KernelFacts, function: FunctionType, arrays: Collection[str]) -> None:
        code = function.__code__
        self._facts, self._arrays, self._parents = facts, arrays, facts.definition.parents
        self._local = facts.local.union(code.co_varnames, code.co_freevars)
        self._globals = function.__globals__
        self._is_unclear = not _BY_NAME.isdisjoint(facts.uses)

    def lost(self, name: str) -> Binding | None:
        """Returns the binding after which a parameter's array certainly has not been written and
        never will be.

        Also an exchange that nothing notices.
        """
        bindings = self._bindings(name)
        if not bindings:
            return None
        bound = {id(binding.name) for binding in bindings}
        uses = [use for use in self._facts.uses[name] if id(use.name) not in bound]
        unclear = {
            self._facts.outermost(use.name)
            for use in uses
            if not self._only_reads(use, strictly=True)
        }
        for statement in self._facts.definition.tree.body:  # which run one after the other
            if statement in unclear:
                break
            for binding in bindings:
                if self._statement(binding) is statement:
                    return binding
        if self._are_only_reads(uses):
            return min(bindings, key=lambda binding: binding.node.lineno)
        for binding in bindings:
            if binding.exchanges and self._is_last(binding):
                return binding
        return None

    def unread(self, name: str) -> Binding | None:
        """Returns a binding of a parameter to a value that nothing reads; None if there
        certainly is none.
        """
        uses, is_updated = list[Use](), False
        for use in self._facts.uses.get(name, ()):
            is_updated |= use.kind is Kind.UPDATED and not use.brackets
            if isinstance(use.name.ctx, ast.Store):
                continue
            if not use.is_own:
                return None  # an inner function may run later
            uses.append(use)
        is_array = not is_updated and self._are_only_reads(uses)
        for binding in self._bindings(name):
            if isinstance(binding.source, ast.Constant) or self._has_own_purpose(binding, uses):
                continue
            is_meant = is_array or binding.exchanges or isinstance(binding.value, ast.BinOp)
            if is_meant and self._is_last(binding):
                return binding
        return None

    def _are_only_reads(self, uses: list[Use]) -> bool:
        return all(self._only_reads(use, strictly=False) for use in uses)

    def _bindings(self, name: str) -> list[Binding]:
        """Returns the bindings of a name to another array or value; none if others are possible."""
        if self._is_unclear or name in self._facts.definition.mentioned:
            return []
        return [
            binding
            for binding in self._facts.bindings
            if binding.name.id == name and not isinstance(binding.node, ast.AugAssign)
        ]

    def _has_own_purpose(self, binding: Binding, uses: list[Use]) -> bool:
        """Returns whether a value is read where it is bound, or is a counter or a resource."""
        if isinstance(binding.node, ast.For | ast.With):
            inside = set(map(id, ast.walk(binding.source)))
            return bool(uses) and inside.isdisjoint(id(use.name) for use in uses)
        return self._statement(binding) is None

    def _statement(self, binding: Binding) -> ast.AST | None:
        """Returns the statement of a binding; None for a `:=` inside another expression."""
        if isinstance(binding.node, ast.NamedExpr):
            parent = self._parents.get(id(binding.node))
            if not isinstance(parent, ast.Expr):
                return None
            return parent
        return binding.node

    def _is_last(self, binding: Binding) -> bool:
        """Returns whether none of the names that are bound is read afterwards."""
        for name in {name.id for name in binding.names}:
            for use in self._facts.uses[name]:
                if not isinstance(use.name.ctx, ast.Store) and use.position >= binding.end:
                    return False
        # the next iteration of a loop may read what it assigns
        for node in self._facts.definition.ancestors(binding.node):
            if isinstance(node, ast.For | ast.While):
                return False
        return True

    def _only_reads(self, use: Use, *, strictly: bool) -> bool:
        """Returns whether a use of a name reads numbers or sizes, and leaves the array without
        another name.

        With `strictly`, also not as an element of a list, as in `y = y + [a]`.
        """
        if use.is_write or use.kind is Kind.BOUND:
            return False
        match use.parent:
            case ast.UnaryOp() | ast.Compare() | ast.Subscript():  # there it is part of an index
                return True
            case ast.Return():
                return use.is_own
            # these also join lists and dicts
            case ast.BinOp(op=ast.Add() | ast.Mult() | ast.BitOr()):
                name = use.name.id
                if name in self._arrays:
                    return True
                return not strictly and self._goes_to(use.parent, name)
            case ast.BinOp():
                return True
            case ast.Attribute() if use.kind is Kind.SIZE:
                return True
            case ast.Attribute(attr=attribute) if attribute in _REDUCTIONS:
                return self._is_reduction(use.parent)
            case ast.Call() if use.kind is Kind.SIZE:
                return "len" not in {*self._local, *self._globals}
            case ast.Call():
                return self._is_ufunc(use.parent)
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
                options = {keyword.arg for keyword in keywords}
                return len(args) <= 1 and options <= {"axis", "keepdims", "dtype", "ddof"}
        return False

    def _is_ufunc(self, call: ast.Call) -> bool:
        """Returns whether a call is that of a NumPy ufunc, which is given no array to write to."""
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=module), attr=attribute),
                args=args,
                keywords=[],
            ) if module not in self._local and self._globals.get(module) is np:
                function = getattr(np, attribute, None)
                has_starred = any(isinstance(argument, ast.Starred) for argument in args)
                if isinstance(function, np.ufunc):
                    return not has_starred and len(args) <= function.nin
        return False
