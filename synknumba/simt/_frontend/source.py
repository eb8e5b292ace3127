"""From a Python function to its syntax tree: the first layer of the compiler.

Every node keeps the line it has in the user's file. What a kernel may not contain, whatever it computes, is refused here.

The source of a lambda.

`inspect` gives the lines of the statement around it, which may hold several lambdas and need not be readable by itself. So the
whole file is read, and the lambda found in it by the place of its code.

Functions and lambdas inside a function become device functions beside it.

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
import inspect
import linecache
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Final, cast

from synknumba._errors import KernelError
from synknumba.simt._frontend.syntax import load, place

NAME: Final = "lambda_"


def identifier(function: FunctionType) -> str:
    """The function's name, or a word for one that has none."""
    return function.__name__ if function.__name__.isidentifier() else NAME


def is_lambda(function: FunctionType) -> bool:
    """Whether the function was written as a lambda."""
    return function.__code__.co_name == "<lambda>"


def lambda_definition(function: FunctionType) -> ast.FunctionDef | None:
    """The lambda as a `def` that returns its value; None if it cannot be told from another one.

    Raises:
        OSError: the source cannot be found.
        SyntaxError: it cannot be read.
    """
    lines, _ = inspect.findsource(function)
    tree = ast.parse("".join(lines))
    code = function.__code__
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    names = [*code.co_varnames[: code.co_argcount]]
    found = [node for node in found if [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)] == names]
    if len(found) > 1:
        found = _around(function, found)
    if len(found) != 1:
        return None
    value = ast.copy_location(ast.Return(found[0].body), found[0].body)
    made = ast.FunctionDef(NAME, found[0].args, [value], [], None)
    return ast.fix_missing_locations(ast.copy_location(made, found[0]))


def _around(function: FunctionType, found: list[ast.Lambda]) -> list[ast.Lambda]:
    """Of several lambdas the one that the function's instructions come from: the innermost that holds all of them."""
    # The first instructions, which no expression stands for, are at column 0 and end there.
    places = [place for place in function.__code__.co_positions() if place[3]]
    around = [node for node in found if places and all(_holds(node.body, place) for place in places)]
    return sorted(around, key=lambda node: (node.body.lineno, node.body.col_offset))[-1:]


def _holds(node: ast.expr, place: tuple[int | None, int | None, int | None, int | None]) -> bool:
    line, end_line, column, end_column = place
    if line is None or end_line is None or column is None or end_column is None:
        return False
    after = (line, column) >= (node.lineno, node.col_offset)
    return after and (end_line, end_column) <= (node.end_lineno or 0, node.end_col_offset or 0)


# What Python knows and CUDA kernels do not. Numba's own message for most of them is a page long.
REFUSED_SYNTAX: dict[type[ast.AST], str] = {
    ast.AsyncFor: "async for",
    ast.AsyncFunctionDef: "a function inside a kernel",
    ast.AsyncWith: "async with",
    ast.Await: "await",
    ast.ClassDef: "a class inside a kernel",
    ast.Delete: "del",
    ast.Dict: "a dict",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a generator expression",
    ast.Global: "global",
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.List: "a list",
    ast.ListComp: "a comprehension",
    ast.Match: "match",
    ast.NamedExpr: "the := operator",
    ast.Nonlocal: "nonlocal",
    ast.Set: "a set",
    ast.SetComp: "a comprehension",
    ast.Try: "try",
    ast.With: "with",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
}

# Builtins that the generated code calls itself.
CALLED_BUILTINS = ("max", "min", "range")

RESERVED_PREFIX = "_k_"
RESERVED_SUFFIXES = ("__arg", "__b", "__h", "__i", "__n", "__o", "__s", "__u")


@dataclass(frozen=True, slots=True)
class Source:
    """A function as its source says it.

    Attributes:
        function: the plain Python function.
        tree: its definition, without decorators, annotations and docstring.
        scope: what its global names and closure variables stand for.
    """

    function: FunctionType
    tree: ast.FunctionDef
    scope: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The function's qualified name."""
        return self.function.__qualname__

    @property
    def filename(self) -> str:
        """The file the function was defined in."""
        return self.function.__code__.co_filename

    @property
    def params(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(arg.arg for arg in (*self.tree.args.posonlyargs, *self.tree.args.args))

    def refusal(self, node: ast.AST, construct: str, way_out: str = "write it in another way") -> KernelError:
        """The error for a construct that cannot be run: kernel, file, line, construct, source line, way out."""
        line = getattr(node, "lineno", self.tree.lineno)
        text = linecache.getline(self.filename, line).strip()
        return KernelError(
            f"{self.name} ({self.filename}:{line}): {construct} is not supported on the CPU; {way_out}\n    {text}"
        )


def read_definition(function: FunctionType) -> Source:
    """The function's source as a tree, whatever it holds.

    Raises:
        KernelError: there is no source.
    """
    made: Source | None = getattr(function, SOURCE, None)
    if made is not None:
        return Source(function, copy.deepcopy(made.tree), made.scope)
    tree = _definition(function)
    # Default values are objects by now, `function.__defaults__`; their expressions may name anything.
    tree.decorator_list, tree.returns, tree.args.defaults = [], None, []
    for arg in (*tree.args.posonlyargs, *tree.args.args):
        arg.annotation = None
    if isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        tree.body = tree.body[1:] or [ast.copy_location(ast.Pass(), tree)]
    return Source(function, tree, _scope(function))


def read_source(function: FunctionType) -> Source:
    """The function's source as a tree, if a kernel may hold it; functions inside it are in the scope.

    Raises:
        KernelError: there is no source, or it holds something that a kernel cannot hold.
    """
    source = read_definition(function)
    _check_signature(source)
    _check_syntax(source)
    _free_builtins(source.tree)
    return lift_functions(source)


def _definition(function: FunctionType) -> ast.FunctionDef:
    name = f"{function.__qualname__} ({function.__code__.co_filename}:{function.__code__.co_firstlineno})"
    try:
        tree = lambda_definition(function) if is_lambda(function) else _statement(function)
    except (OSError, TypeError) as error:
        raise KernelError(
            f"{name}: the Python source of the kernel cannot be found ({error}), and running it on the CPU needs it; "
            "define the kernel in a file or a notebook cell, not through exec() or eval()"
        ) from error
    except SyntaxError as error:
        raise KernelError(
            f"{name}: the source of the kernel cannot be read by itself ({error.msg}); write it as a def statement"
        ) from error
    if tree is None:
        raise KernelError(f"{name}: it cannot be told which of the lambdas of this line it is; write it as a def statement")
    if not isinstance(tree, ast.FunctionDef):
        raise KernelError(f"{name}: a kernel must be a def, not a {type(tree).__name__.lower()}")
    return tree


def _statement(function: FunctionType) -> ast.stmt:
    lines, first = inspect.getsourcelines(function)
    # An indented definition is put under an `if`, which takes the place of the line above it.
    indented = lines[0][:1].isspace()
    text = "".join(lines)
    outer = ast.parse("if True:\n" + text if indented else text).body[0]
    definition = outer.body[0] if isinstance(outer, ast.If) else outer
    ast.increment_lineno(definition, first - (2 if indented else 1))
    return definition


def _scope(function: FunctionType) -> dict[str, Any]:
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:  # the enclosing function has not assigned it yet
            scope.pop(name, None)
    return scope


def _check_signature(source: Source) -> None:
    args = source.tree.args
    if args.vararg or args.kwarg:
        raise source.refusal(source.tree, "a parameter like *args or **kwargs", "name every parameter")
    if args.kwonlyargs:
        raise source.refusal(source.tree, "a keyword-only parameter", "make it an ordinary parameter")


def _check_syntax(source: Source) -> None:
    for node in ast.walk(source.tree):
        if node is source.tree:
            continue
        if type(node) in REFUSED_SYNTAX:
            raise source.refusal(node, REFUSED_SYNTAX[type(node)])
        if isinstance(node, ast.Starred) and not isinstance(node.ctx, ast.Load):
            raise source.refusal(node, "* in the target of an assignment", "name each part")
        if isinstance(node, ast.Name):
            _check_name(source, node)
    for param in source.params:
        _check_name(source, ast.copy_location(ast.Name(param), source.tree))


def _free_builtins(tree: ast.FunctionDef) -> None:
    """Renames the variables that hide a builtin which the generated code calls, such as a variable `max`."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    args = (*tree.args.posonlyargs, *tree.args.args)
    for name in CALLED_BUILTINS:
        if name not in stored and all(arg.arg != name for arg in args):
            continue
        new = f"{name}_"
        while new in names:
            new += "_"
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id == name:
                node.id = new
            elif isinstance(node, ast.arg) and node.arg == name:
                node.arg = new


def _check_name(source: Source, node: ast.Name) -> None:
    if node.id.startswith(RESERVED_PREFIX) or node.id.endswith(RESERVED_SUFFIXES):
        raise source.refusal(node, f"the name {node.id!r}, of a form that the compiler uses itself,", "rename it")


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
