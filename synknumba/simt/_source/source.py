"""Reads a Python function into a syntax tree: the first stage of the compiler.

Every node keeps its line in the user's file. Syntax that no kernel may contain is rejected here.

Lambdas: `inspect` returns the lines of the enclosing statement, which may contain several lambdas
and need not parse by itself. The whole file is therefore parsed, and the lambda identified by the
positions of its code.

Inner functions: functions and lambdas inside a function are lifted out and become device functions.
The variables of the outer function that an inner one reads become its first parameters, and every
call passes their current values, as a closure would read them:

    def kernel(x, out):                          def add(bias, v):
        bias = x[0]                                  return v + bias
        def add(v):                 ->
            return v + bias                      def kernel(x, out):
        out[0] = add(x[1])                           bias = x[0]
                                                     out[0] = add(bias, x[1])

A variable assigned once, from a constant, is replaced by the constant. Functions nested more deeply
are lifted when the function around them is translated.
"""

import ast
import inspect
import os
import sys
from dataclasses import replace
from tokenize import TokenError
from types import FunctionType
from typing import Any, Final

from synknumba._errors import KernelError
from synknumba.simt._source import mlir
from synknumba.simt._source.inner_functions import Lifter, _Inner
from synknumba.simt._source.python_forms import MATCHED, PythonForms
from synknumba.simt._source.reads import closure_values
from synknumba.simt._source.source_text import check_text
from synknumba.simt._source.syntax import assigned_names, copied, count_each, nodes_of, rename, walk
from synknumba.simt._source.written import (
    IN_KERNELS,
    SOURCE,
    Source,
    by_position,
    names_by_position,
)

NAME: Final = "lambda_"  # of a lambda in generated code


def _lambda_definition(function: FunctionType) -> ast.FunctionDef | None:
    """Returns the lambda as a `def` that returns its value; None if it cannot be told from
    another lambda.
    """
    lines, _ = inspect.findsource(function)
    code = function.__code__
    place = code.co_firstlineno, code.co_varnames[: code.co_argcount]
    lambdas = [
        node
        for node in nodes_of(ast.Lambda, ast.parse("".join(lines)))
        if (node.lineno, names_by_position(node.args)) == place
    ]
    if len(lambdas) > 1:
        lambdas = _around(function, lambdas)
    if len(lambdas) != 1:
        return None
    (node,) = lambdas
    value = ast.copy_location(ast.Return(node.body), node.body)
    definition = ast.FunctionDef(NAME, node.args, [value], [], None)
    return ast.fix_missing_locations(ast.copy_location(definition, node))


def _around(function: FunctionType, lambdas: list[ast.Lambda]) -> list[ast.Lambda]:
    """Returns the innermost of several lambdas whose body contains the positions of all
    instructions of the function.
    """
    # The first instructions belong to no expression: they start and end at column 0.
    places = [place for place in function.__code__.co_positions() if place[3]]
    if not places:  # of one that returns a constant, in Python 3.12
        return [node for node in lambdas if isinstance(node.body, ast.Constant)]
    around = [node for node in lambdas if all(_holds(node.body, place) for place in places)]
    return sorted(around, key=lambda node: (node.body.lineno, node.body.col_offset))[-1:]


def _holds(node: ast.expr, place: tuple[Any, ...]) -> bool:
    if None in place:
        return False
    line, end_line, column, end_column = place
    begins_before = (node.lineno, node.col_offset) <= (line, column)
    return begins_before and (end_line, end_column) <= (node.end_lineno, node.end_col_offset)


# Python syntax that kernels do not support on any device, and what to write instead. Numba's own
# error for most of it is a page long.
REFUSED_SYNTAX: dict[type[ast.AST], tuple[str, str]] = {
    ast.AsyncFor: ("async for", "use a plain for"),
    ast.AsyncFunctionDef: ("an async function inside a kernel", "use a plain def"),
    ast.AsyncWith: ("async with", "leave it out"),
    ast.Await: ("await", "leave it out"),
    ast.ClassDef: (
        "a class inside a kernel",
        "define it outside, and pass its numbers as arguments",
    ),
    ast.Delete: ("del of an element or attribute", "leave it out"),
    ast.Dict: ("a dict", "use arrays, or variables"),
    ast.DictComp: ("a comprehension", "write a loop"),
    ast.GeneratorExp: ("a generator expression", "write a loop"),
    ast.Global: ("an assignment to a global variable", "write to an array argument"),
    ast.Import: ("import", "import it outside the kernel"),
    ast.ImportFrom: ("import", "import it outside the kernel"),
    ast.List: ("a list", "use a tuple, or cuda.local.array"),
    ast.ListComp: ("a comprehension", "write a loop"),
    ast.Match: ("match of sequences, mappings or classes", "compare with if"),
    ast.Nonlocal: ("nonlocal", "return the value"),
    ast.Set: ("a set", "use a tuple, or cuda.local.array"),
    ast.SetComp: ("a comprehension", "write a loop"),
    ast.Try: ("try", "check the condition with if"),
    ast.With: ("with", "leave it out"),
    ast.Yield: ("yield", "write to an array argument"),
    ast.YieldFrom: ("yield", "write to an array argument"),
}


# Builtins called by the generated code.
CALLED_BUILTINS = ("max", "min", "range")

# Names of the generated code; variables of the user that look like them get others.

RESERVED_PREFIX = "_k_"
RESERVED_SUFFIXES = ("__arg", "__b", "__h", "__i", "__n", "__o", "__s", "__u")


def read_definition(function: FunctionType) -> Source:
    """Returns the function's source as a tree, without checking its syntax."""
    lifted: Source | None = getattr(function, SOURCE, None)
    if lifted is not None:
        return Source(function, copied(lifted.tree), lifted.scope)
    tree = _definition(function)
    # Default values are taken from `function.__defaults__`; their expressions may use any name.
    tree.decorator_list, tree.returns, tree.args.defaults = [], None, []
    for arg in by_position(tree.args):
        arg.annotation = None
    match tree.body:
        case [ast.Expr(value=ast.Constant()), *statements]:
            tree.body = statements or [ast.copy_location(ast.Pass(), tree)]
    return Source(function, tree, _scope(function))


def read_source(function: FunctionType) -> Source:
    """Returns the function's source as a checked tree, with inner functions lifted into the
    scope.
    """
    source = read_definition(function)
    _check_deleted(source)
    PythonForms(source.tree).generic_visit(source.tree)
    _check_syntax(source)
    _name_rest(source.tree)
    source = _free_names(source)
    if not any(isinstance(node, _Inner) for node in walk(source.tree.body)):
        return source
    return Lifter(source).run()


def _definition(function: FunctionType) -> ast.FunctionDef:
    check_text(function)
    code = function.__code__
    name = f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
    try:
        if code.co_name == "<lambda>":
            tree: ast.stmt | None = _lambda_definition(function)
        else:
            tree = _statement(function)
    except (OSError, TypeError, IndexError, TokenError) as error:
        raise KernelError(_without_source(function, name, error)) from None
    except SyntaxError as error:
        raise KernelError(
            f"{name}: the source of the kernel cannot be parsed on its own ({error.msg}); "
            f"write it as a def statement"
        ) from error
    if tree is None:
        raise KernelError(
            f"{name}: several lambdas on this line match; write it as a def statement"
        )
    if not isinstance(tree, ast.FunctionDef):
        raise KernelError(f"{name}: a kernel must be a def, not a {type(tree).__name__.lower()}")
    return tree


def _without_source(function: FunctionType, name: str, error: Exception) -> str:
    """Returns why a function has no source text, and what to do."""
    needed = "running a kernel on the CPU needs it"
    filename = function.__code__.co_filename
    if filename == "<stdin>":
        if hasattr(sys, "ps1") or sys.flags.interactive:
            return (
                f"{name} was typed at Python's prompt, which before Python 3.13 keeps no source, "
                f"and {needed}; define it in a file that you import, or use IPython or the prompt "
                "of Python 3.13"
            )
        return (
            f"{name} was read from standard input, as by python - < script.py, which keeps no "
            f"source, and {needed}; pass the script's file to python"
        )
    if os.path.exists(filename) and not os.path.isfile(filename):
        return (
            f"{name} was read from a pipe, as by python <(...) or python /dev/stdin, which keeps "
            f"no source, and {needed}; pass the script's file to python"
        )
    is_command = sys.argv[:1] == ["-c"] and function.__module__ == "__main__"
    if filename == "<string>" and is_command:
        return (
            f"{name} was given to python -c, which keeps no source, and {needed}; write it to a "
            "file, and run that"
        )
    return (
        f"{name}: the Python source of the kernel cannot be found ({error}), and running it on "
        "the CPU needs it; define the kernel in a file or a notebook cell; for one made by "
        "exec(compile(text, name, 'exec')), enter its text first: linecache.cache[name] = "
        "(len(text), None, text.splitlines(True), name)"
    )


def _statement(function: FunctionType) -> ast.stmt:
    if hasattr(function, "__wrapped__"):  # `inspect` would read the function that this one wraps
        function = FunctionType(
            function.__code__, function.__globals__, function.__name__, None, function.__closure__
        )
    lines, first = inspect.getsourcelines(function)
    text, above = "".join(lines), 1
    if text[:1].isspace():  # an indented definition is parsed under an `if`, one line above it
        text, above = f"if True:\n{text}", 2
    definition = ast.parse(text).body[0]
    if isinstance(definition, ast.If):
        definition = definition.body[0]
    ast.increment_lineno(definition, first - above)
    return definition


def _scope(function: FunctionType) -> dict[str, Any]:
    values = {**function.__globals__}
    for name in function.__code__.co_freevars:
        values.pop(name, None)
    values |= closure_values(function)
    return {name: mlir.counterpart(value) for name, value in values.items()}


def _check_syntax(source: Source) -> None:
    args = source.tree.args
    if args.kwarg:
        raise source.refusal(
            source.tree, "a parameter like **kwargs", "name every parameter", IN_KERNELS
        )
    if args.kwonlyargs:
        raise source.refusal(
            source.tree, "a keyword-only parameter", "make it an ordinary parameter", IN_KERNELS
        )
    for node in walk(source.tree):
        if node is source.tree:
            continue
        if type(node) in REFUSED_SYNTAX:
            raise source.refusal(node, *REFUSED_SYNTAX[type(node)], IN_KERNELS)
        match node:
            case ast.Starred(ctx=ast.Store()):
                raise source.refusal(
                    node, "* in the target of an assignment", "name each part", IN_KERNELS
                )


def _check_deleted(source: Source) -> None:
    """Rejects a variable that is read behind its `del`, as Numba does."""
    for node in walk(source.tree):
        for field in ("body", "orelse"):
            body = getattr(node, field, None)
            if isinstance(body, list):  # not of a lambda, whose body is an expression
                _check_body(source, body)


def _check_body(source: Source, body: list[ast.stmt]) -> None:
    for position, statement in enumerate(body, 1):
        if not isinstance(statement, ast.Delete):
            continue
        for name in map(ast.unparse, statement.targets):
            use = _read_before_store(name, body[position:])
            if use is not None:
                raise source.error(use, f"{name} is read after del {name}; leave the del out")


def _read_before_store(name: str, body: list[ast.stmt]) -> ast.Name | None:
    for statement in body:
        uses = [node for node in nodes_of(ast.Name, statement) if node.id == name]
        if any(isinstance(node.ctx, ast.Store) for node in uses):
            return None
        if uses:
            return uses[0]
    return None


def _name_rest(tree: ast.FunctionDef) -> None:
    """Makes a parameter `*rest` an ordinary one, of a tuple."""
    if tree.args.vararg is not None:
        tree.args.args.append(tree.args.vararg)
        tree.args.vararg = None


def _free_names(source: Source) -> Source:
    """Renames variables that shadow a builtin called by the generated code, and names that look
    like those of that code.
    """
    tree = source.tree
    params = set(source.params)
    names = params | count_each(tree).keys()
    bound = params | assigned_names(tree)
    reserved = set(filter(_is_reserved, names)) | bound.intersection(CALLED_BUILTINS)
    if not reserved:
        return source
    new: dict[str, str] = {}
    for name in sorted(reserved):
        free = f"{name}_"
        if name.startswith("_"):
            free = f"user{name}_"
        while free in names or free in source.scope:
            free += "_"
        names.add(free)
        new[name] = free
    rename(tree, new)
    scope = {**source.scope}
    for name, free in new.items():
        if name in scope and name not in bound:
            scope[free] = scope[name]
    return replace(source, scope=scope)


def _is_reserved(name: str) -> bool:
    if name.startswith(MATCHED):
        return name.endswith(RESERVED_SUFFIXES)
    return name.startswith(RESERVED_PREFIX) or name.endswith(RESERVED_SUFFIXES)
