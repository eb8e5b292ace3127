"""Functions within a function: lifted out, with the values around them as parameters."""

import ast
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import FunctionType
from typing import Any, cast

from synknumba.simt._source.syntax import copied, count_stores, load, param_names, place, walk
from synknumba.simt._source.written import SOURCE, Source

_Inner = ast.FunctionDef | ast.Lambda


class NestedFunction:
    """An inner function lifted into the scope, with the interface of a device function."""

    __simt_kernel__ = True
    signatures_given: tuple[()] = ()

    def __init__(self, function: FunctionType) -> None:
        self.py_func = function  # with the captured variables as first parameters


class Lifter(ast.NodeTransformer):
    """Moves inner functions out of a function and into its scope; visiting leaves those nested
    inside inner ones in place.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        tree = source.tree
        self._functions: dict[str, _Inner] = {}
        tree.body = [*map(self.visit, tree.body)]
        stores = count_stores(tree.body)  # outside functions: none are left
        self._locals = {*source.params, *stores}
        self._constants = {}
        for node in walk(tree.body):
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name), *_], value=ast.Constant(value=value)
                ) if stores[name] == 1:
                    self._constants[name] = value
        for param in source.params:
            self._constants.pop(param, None)
        for name, inner in self._functions.items():
            if name in self._locals:
                raise source.refusal(
                    inner,
                    f"a function inside a kernel with the name of a variable, {name!r},",
                    "rename it",
                )

    def _add(self, name: str, node: _Inner) -> str:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            raise self._source.refusal(
                node,
                "a decorator of a function inside a kernel",
                "define it outside, or without one",
            )
        if not name:
            name = f"lambda{len(self._functions)}"
        if name in self._functions:
            construct = f"the name {name!r} for two functions inside a kernel"
            raise self._source.refusal(node, construct, "use different names")
        self._functions[name] = node
        return name

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        self._add(node.name, node)
        return ast.copy_location(ast.Pass(), node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as function):
                self._add(name, function)
                return ast.copy_location(ast.Pass(), node)
        return cast(ast.stmt, self.generic_visit(node))

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return ast.copy_location(load(self._add("", node)), node)

    def run(self) -> Source:
        """Returns the function with calls of the lifted functions, which its scope holds."""
        captured = self._captured()
        scope = {**self._source.scope, **self._constants}
        source = replace(self._source, scope=scope)
        passer = Passer(source, captured)
        source.tree.body = [*map(passer.visit, source.tree.body)]
        for name, node in self._functions.items():
            bound = _bound(node)
            clash = sorted(set(captured[name]) & bound)
            if clash:
                construct = (
                    f"a function inside a kernel whose variable {clash[0]!r} hides one that a "
                    "function it calls reads"
                )
                raise source.refusal(node, construct, "rename it")
            passer.hidden = bound
            scope[name] = NestedFunction(self._made(name, node, captured[name], passer, scope))
        return source

    def _captured(self) -> dict[str, list[str]]:
        """Returns the variables captured by each function, directly or through the inner functions
        it calls.
        """
        variables = self._locals - self._constants.keys()
        names = {name: _free(node) for name, node in self._functions.items()}
        for _ in names:  # no chain of calls is longer
            for read in names.values():
                for called in read & names.keys():
                    read |= names[called]  # noqa: PLW2901
        return {name: sorted(read & variables) for name, read in names.items()}

    def _made(
        self, name: str, node: _Inner, captured: list[str], passer: "Passer", scope: dict[str, Any]
    ) -> FunctionType:
        args = copied(node.args)
        defaults = tuple(self._default(default) for default in args.defaults)
        args.posonlyargs = [*(ast.arg(variable) for variable in captured), *args.posonlyargs]
        args.defaults = []
        tree = ast.FunctionDef(name, args, [*map(passer.visit, _statements(node))], [], None)
        if sys.version_info >= (3, 12):
            tree.type_params = []
        place(tree, node)
        outer = self._source.function
        namespace: dict[str, Any] = {"__name__": outer.__module__}
        compiled = compile(ast.Module([copied(tree)], []), self._source.filename, "exec")
        exec(compiled, namespace)  # noqa: S102  # the user's own function, moved
        function: FunctionType = namespace[name]
        function.__defaults__ = defaults or None
        function.__qualname__ = f"{outer.__qualname__}.<locals>.{name}"
        setattr(function, SOURCE, replace(self._source, function=function, tree=tree, scope=scope))
        return function

    def _default(self, node: ast.expr) -> Any:
        with suppress(ValueError):
            return ast.literal_eval(node)
        if (
            isinstance(node, ast.Name)
            and node.id not in self._locals
            and node.id in self._source.scope
        ):
            return self._source.scope[node.id]
        raise self._source.refusal(
            node, "a default value that is not a constant", "pass it in each call"
        )


class Passer(ast.NodeTransformer):
    """Passes captured variables as arguments in each call of an inner function."""

    def __init__(self, source: Source, captured: dict[str, list[str]]) -> None:
        self._source, self._captured = source, captured
        self.hidden: set[str] = set()  # names that the visited function binds to something else

    def _reads(self, node: ast.AST) -> list[str] | None:
        if isinstance(node, ast.Name) and node.id not in self.hidden:
            return self._captured.get(node.id)
        return None

    def visit_Call(self, node: ast.Call) -> ast.expr:
        reads = self._reads(node.func)
        if reads is None:
            return cast(ast.expr, self.generic_visit(node))
        node.args = [
            *(ast.copy_location(load(name), node) for name in reads),
            *map(self.visit, node.args),
        ]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        reads = self._reads(node)
        if reads:
            construct = (
                f"{node.id} as a value: a function inside a kernel that reads its variable "
                f"{reads[0]!r}"
            )
            raise self._source.refusal(node, construct, "call it, or make the variable an argument")
        return node

    def _inside(self, node: _Inner) -> ast.AST:
        outer, self.hidden = self.hidden, self.hidden | _bound(node)
        self.generic_visit(node)
        self.hidden = outer
        return node

    visit_FunctionDef = visit_Lambda = _inside


def _statements(node: _Inner) -> list[ast.stmt]:
    """Returns the body of a function; of a lambda, the `return` of its value."""
    if isinstance(node, ast.Lambda):
        return [ast.Return(node.body)]
    return node.body


def _nodes(trees: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yields all nodes of the trees except those inside functions; the function nodes themselves
    are included.
    """
    for node in trees:
        yield node
        if not isinstance(node, _Inner):
            yield from _nodes(ast.iter_child_nodes(node))


def _bound(node: _Inner) -> set[str]:
    """Returns the names bound in a function: parameters, variables, inner functions."""
    names = param_names(node)
    for part in _nodes(_statements(node)):
        match part:
            case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name):
                names.add(name)
    return names


def _free(node: _Inner) -> set[str]:
    """Returns the free names of a function: read but not bound in it."""
    names: set[str] = set()
    for part in _nodes(_statements(node)):
        match part:
            case ast.Name(id=name, ctx=ast.Load()):
                names.add(name)
            case ast.FunctionDef() | ast.Lambda():
                names |= _free(part)
    return names - _bound(node)
