"""Functions made of generated code."""

import ast
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, cast

from synknumba.simt._analysis.namespace import NONNEG
from synknumba.simt._analysis.team import LINEAR_TEXT
from synknumba.simt._library.runtime import HELPERS
from synknumba.simt._library.words import LINEAR
from synknumba.simt._lower.thread_code import ThreadCode
from synknumba.simt._source.syntax import place, read_names, statements
from synknumba.simt._source.written import Source


def generated_function(
    name: str, code: ThreadCode, params: Sequence[str], *, rest: bool = False
) -> FunctionType:
    """Makes a Python function of the code of one thread; `rest`: the last parameter takes all
    further arguments.
    """
    body = code.body
    if LINEAR in read_names(body):
        body = statements(f"{LINEAR} = {NONNEG}({LINEAR_TEXT})", code.source.tree) + body
    return define_function(name, params, body, HELPERS, code.source, rest=rest)


def define_function(
    name: str,
    params: Iterable[str],
    body: list[ast.stmt],
    namespace: Mapping[str, Any],
    source: Source,
    *,
    rest: bool = False,
) -> FunctionType:
    """Makes a Python function with these globals from statements, which keep the file and line
    numbers of the user's source.
    """
    arguments = ast.arguments([], [ast.arg(param) for param in params], None, [], [], None, [])
    if rest:
        arguments.vararg = arguments.args.pop()
    tree = ast.FunctionDef(name, arguments, body or [ast.Pass()], [], None)
    if sys.version_info >= (3, 12):
        tree.type_params = []
    place(tree, source.tree)
    module = source.function.__module__
    # If a function's module is not in sys.modules, Numba names the function differently where it
    # calls itself.
    if module not in sys.modules:
        module = "builtins"
    scope: dict[str, Any] = {**namespace, "__name__": module}
    exec(compile(ast.Module([tree], []), source.filename, "exec"), scope)  # noqa: S102  # the generated function
    return cast(FunctionType, scope[name])
