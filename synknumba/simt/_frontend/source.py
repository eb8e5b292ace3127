"""From a Python function to its syntax tree: the first layer of the compiler.

Every node keeps the line it has in the user's file. What a kernel may not contain, whatever it computes, is refused here.
"""

import ast
import copy
import inspect
import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from synknumba._errors import KernelError
from synknumba.simt._frontend.inner_functions import SOURCE, lift_functions
from synknumba.simt._frontend.lambdas import is_lambda, lambda_definition

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
        message = (
            f"{name}: the Python source of the kernel cannot be found ({error}), and running it on the CPU needs it; "
            "define the kernel in a file or a notebook cell, not through exec() or eval()"
        )
        raise KernelError(message) from error
    except SyntaxError as error:
        message = f"{name}: the source of the kernel cannot be read by itself ({error.msg}); write it as a def statement"
        raise KernelError(message) from error
    if tree is None:
        message = f"{name}: it cannot be told which of the lambdas of this line it is; write it as a def statement"
        raise KernelError(message)
    if not isinstance(tree, ast.FunctionDef):
        message = f"{name}: a kernel must be a def, not a {type(tree).__name__.lower()}"
        raise KernelError(message)
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
