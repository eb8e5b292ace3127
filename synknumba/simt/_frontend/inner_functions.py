"""Functions and lambdas inside a function become device functions beside it.

The variables of the outer function that one reads become its first parameters, and every call passes them as they are then,
which is what a closure reads:

    def kernel(x, out):                          def add(bias, v):
        bias = x[0]                                  return v + bias
        def add(v):                 ->
            return v + bias                      def kernel(x, out):
        out[0] = add(x[1])                           bias = x[0]
                                                     out[0] = add(bias, x[1])

A variable that holds one constant is replaced by it. Functions inside such a function have their turn when it is translated.
"""

import ast
import copy
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, cast

from synknumba.simt._frontend.syntax import load, place

if TYPE_CHECKING:  # `_source` hands over what it has read
    from synknumba.simt._frontend.source import Source

# The attribute of a function made here, which has no source text of its own: its `Source`.
SOURCE: Final = "__simt_source__"

_Inner = ast.FunctionDef | ast.Lambda


class NestedFunction:
    """Stands for an inner function in the scope: a device function like any other.

    Attributes:
        py_func: the function, with the variables that it reads as first parameters.
        signatures_given: none, as for a device function that is declared for no types.
    """

    __simt_kernel__ = True
    signatures_given: tuple[()] = ()

    def __init__(self, function: FunctionType) -> None:
        self.py_func = function


def lift_functions(source: "Source") -> "Source":
    """The function without inner functions, which are in its scope instead.

    Raises:
        KernelError: an inner function is defined twice, or used in a way that only Python knows.
    """
    if not any(isinstance(node, _Inner) for node in ast.walk(source.tree) if node is not source.tree):
        return source
    return _Lifter(source).run()


class _Lifter:
    def __init__(self, source: "Source") -> None:
        self._source = source
        tree = source.tree
        self._found: dict[str, _Inner] = {}
        tree.body = [_Collector(self._add).visit(statement) for statement in tree.body]
        stores = Counter(node.id for node in _own(tree.body) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        self._locals = {*source.params, *stores}
        self._constants = {
            node.targets[0].id: node.value.value
            for node in _own(tree.body)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
            and stores[node.targets[0].id] == 1
            and node.targets[0].id not in source.params
        }
        for name, node in self._found.items():
            if name in self._locals:
                raise source.refusal(node, f"a function inside a kernel with the name of a variable, {name!r},", "rename it")

    def _add(self, name: str, node: _Inner) -> str:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            raise self._source.refusal(node, "a decorator of a function inside a kernel", "define it outside, or without one")
        if not name:
            name = f"lambda{len(self._found)}"
        if name in self._found:
            construct = f"the name {name!r} for two functions inside a kernel"
            raise self._source.refusal(node, construct, "give each its own name")
        self._found[name] = node
        return name

    def run(self) -> "Source":
        captured = self._captured()
        scope = {**self._source.scope, **self._constants}
        source = replace(self._source, scope=scope)
        passer = _Passer(source, captured)
        source.tree.body = [passer.visit(statement) for statement in source.tree.body]
        for name, node in self._found.items():
            bound = set(_bound(node))
            clash = sorted(set(captured[name]) & bound)
            if clash:
                construct = f"a function inside a kernel whose variable {clash[0]!r} hides one that a function it calls reads"
                raise source.refusal(node, construct, "rename it")
            passer.hidden = bound
            scope[name] = NestedFunction(self._made(name, node, captured[name], passer, scope))
        return source

    def _captured(self) -> dict[str, list[str]]:
        """The variables that each function reads, itself or through the functions it calls."""
        free = {name: _free(node) for name, node in self._found.items()}
        read = {name: (names & self._locals) - set(self._constants) for name, names in free.items()}
        before = -1
        while before != sum(map(len, read.values())):
            before = sum(map(len, read.values()))
            for name, names in free.items():
                for other in names & set(read):
                    read[name] |= read[other]
        return {name: sorted(names) for name, names in read.items()}

    def _made(self, name: str, node: _Inner, captured: list[str], passer: "_Passer", scope: dict[str, Any]) -> FunctionType:
        body = node.body if isinstance(node, ast.FunctionDef) else [ast.Return(node.body)]
        args = copy.deepcopy(node.args)
        defaults = tuple(self._default(default) for default in args.defaults)
        args.posonlyargs = [*(ast.arg(variable) for variable in captured), *args.posonlyargs]
        args.defaults = []
        tree = ast.FunctionDef(name, args, [passer.visit(statement) for statement in body], [], None)
        if sys.version_info >= (3, 12):
            tree.type_params = []
        place(tree, node)
        outer = self._source.function
        namespace: dict[str, Any] = {"__name__": outer.__module__}
        compiled = compile(ast.Module([copy.deepcopy(tree)], []), self._source.filename, "exec")
        exec(compiled, namespace)  # noqa: S102  # the user's function, in another place
        function: FunctionType = namespace[name]
        function.__defaults__ = defaults or None
        function.__qualname__ = f"{outer.__qualname__}.<locals>.{name}"
        setattr(function, SOURCE, replace(self._source, function=function, tree=tree, scope=scope))
        return function

    def _default(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except ValueError:
            pass
        if isinstance(node, ast.Name) and node.id not in self._locals and node.id in self._source.scope:
            return self._source.scope[node.id]
        raise self._source.refusal(node, "a default value that is not a constant", "pass it in each call")


class _Collector(ast.NodeTransformer):
    """Takes the functions out of a function, and leaves those inside them where they are."""

    def __init__(self, add: Any) -> None:
        self._add = add

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        self._add(node.name, node)
        return ast.copy_location(ast.Pass(), node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        if isinstance(node.value, ast.Lambda) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self._add(node.targets[0].id, node.value)
            return ast.copy_location(ast.Pass(), node)
        return cast(ast.stmt, self.generic_visit(node))

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        return ast.copy_location(load(self._add("", node)), node)


class _Passer(ast.NodeTransformer):
    """Passes what inner functions read in each of their calls.

    Attributes:
        hidden: names that stand for something else in the function that is visited.
    """

    def __init__(self, source: "Source", captured: dict[str, list[str]]) -> None:
        self._source, self._captured = source, captured
        self.hidden: set[str] = set()

    def _reads(self, node: ast.AST) -> list[str] | None:
        return self._captured.get(node.id) if isinstance(node, ast.Name) and node.id not in self.hidden else None

    def visit_Call(self, node: ast.Call) -> ast.expr:
        reads = self._reads(node.func)
        if reads is None:
            return cast(ast.expr, self.generic_visit(node))
        node.args = [*(ast.copy_location(load(name), node) for name in reads), *map(self.visit, node.args)]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        reads = self._reads(node)
        if reads:
            construct = f"{node.id} as a value: a function inside a kernel that reads its variable {reads[0]!r}"
            raise self._source.refusal(node, construct, "call it, or make the variable an argument")
        return node

    def _inside(self, node: _Inner) -> ast.AST:
        outer, self.hidden = self.hidden, self.hidden | set(_bound(node))
        self.generic_visit(node)
        self.hidden = outer
        return node

    visit_FunctionDef = visit_Lambda = _inside


def _own(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes below, except those inside functions; these themselves are among them."""
    for node in nodes:
        yield node
        if not isinstance(node, _Inner):
            yield from _own(ast.iter_child_nodes(node))


def _parts(node: _Inner) -> list[ast.AST]:
    return [*node.body] if isinstance(node, ast.FunctionDef) else [node.body]


def _bound(node: _Inner) -> Iterator[str]:
    """The names that are a function's own."""
    args = node.args
    for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
        if arg is not None:
            yield arg.arg
    for part in _own(_parts(node)):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            yield part.id
        elif isinstance(part, ast.FunctionDef):
            yield part.name


def _free(node: _Inner) -> set[str]:
    """The names that a function reads and that are not its own."""
    names: set[str] = set()
    for part in _own(_parts(node)):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            names.add(part.id)
        elif isinstance(part, _Inner):
            names |= _free(part)
    return names - set(_bound(node))
