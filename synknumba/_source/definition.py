"""A function's source as a syntax tree with its parents and names, read once for every analysis
of it.
"""

import ast
import inspect
import textwrap
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from tokenize import TokenError
from types import CodeType, FunctionType
from typing import Any, TypeGuard, final

MAX_READ = 64  # definitions kept; the analyses of one function follow each other


@final
class Definition:
    """The definition of a function. Its tree is shared and must not be changed.

    Attributes:
        tree: the definition, numbered as in its file.
        nodes: nodes of its body, with those of nested functions.
        parents: parent of each node but the outermost statements, by the node's id.
        names: occurrences of names among the nodes.
        parameters: names of the parameters, without those of `*args` and `**kwargs`.
        mentioned: names bound by other nodes than names: by `global`, `import`, `case`,
            `except … as`, nested functions.
    """

    def __init__(self, tree: ast.FunctionDef) -> None:
        self.tree = tree
        self.nodes = [node for statement in tree.body for node in ast.walk(statement)]
        self.parents = {
            id(child): node for node in self.nodes for child in ast.iter_child_nodes(node)
        }
        self.names = [node for node in self.nodes if isinstance(node, ast.Name)]
        signature = tree.args
        args = (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)
        self.parameters = [arg.arg for arg in args]
        self.mentioned: list[str] = []
        for node in self.nodes:
            if not isinstance(node, ast.Name | ast.Attribute | ast.Constant | ast.keyword):
                self.mentioned += _strings(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the nodes around a node, outwards."""
        while (parent := self.parents.get(id(node))) is not None:
            yield parent
            node = parent

    @cached_property
    def own(self) -> list[ast.AST]:
        """The nodes outside nested functions, whose parameters may have the same names; with
        those of the signature.
        """
        return list(_own_nodes(self.tree))


def read_function(function: Callable[..., Any]) -> Definition | None:
    """Returns the definition of a function, of one with `__wrapped__` that of the wrapped one;
    None without source.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not isinstance(code, CodeType):
        return None
    return read_code(code)


def read_code(code: CodeType) -> Definition | None:
    """Returns the definition from which code was compiled; None without source, or if the name
    shows that it has changed.
    """
    return _read(code, code.co_filename)


@lru_cache(MAX_READ)
# code that differs in its file only is equal
def _read(code: CodeType, _filename: str) -> Definition | None:
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    # no source, or that of a file in the middle of an edit
    except (
        OSError,
        TypeError,
        SyntaxError,
        TokenError,
    ):
        return None
    match tree.body:
        case [ast.FunctionDef(name=code.co_name) as definition, *_]:
            ast.increment_lineno(tree, first - 1)
            return Definition(definition)
    return None


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(
            child, ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.AsyncFunctionDef
        ):
            yield from _own_nodes(child)


def _strings(node: ast.AST) -> Iterator[str]:
    for _, value in ast.iter_fields(node):
        values = value
        if not isinstance(value, list):
            values = [value]
        for text in values:
            if isinstance(text, str):
                yield text


def is_as_written(function: object) -> TypeGuard[FunctionType]:
    """Returns whether the source of a plain function is available, and has not changed since it
    was compiled. A wrapper does what it likes, and its text is not that of the wrapped function.
    """
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        return False
    code = function.__code__
    try:
        codes = _codes_of("".join(inspect.findsource(code)[0]), code.co_filename)
    except (OSError, TypeError, ValueError, SyntaxError):
        return False
    return codes.count(code) == 1


@lru_cache(maxsize=4)  # files; compiling one of 200 lines takes 3 ms
def _codes_of(text: str, filename: str) -> list[CodeType]:
    """Returns the code of all functions of a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [*_codes(compile(text, filename, "exec", dont_inherit=True))]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _codes(value)
