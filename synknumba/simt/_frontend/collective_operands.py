"""A collective in an expression becomes assignments of its arguments, a statement, and the variable that has its value."""

import ast
from collections.abc import Callable

from synknumba.simt._frontend.source import Source
from synknumba.simt._frontend.sync import EXCHANGED, OPERAND, collective_statement
from synknumba.simt._frontend.syntax import assign, load, place, read_names
from synknumba.simt._library.synchronisation import COLLECTIVES

Fresh = Callable[[str], str]


def arguments_of(node: ast.Call, path: str, source: Source) -> list[ast.expr]:
    """The arguments of a collective, in the order of its parameters.

    Raises:
        KernelError: they are not as many as it has parameters, or not of their names.
    """
    params = COLLECTIVES[path].params
    given = dict(zip(params, node.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
    if len(node.args) + len(node.keywords) != len(params) or set(given) != set(params):
        construct = f"cuda.{path}() without exactly the arguments {', '.join(params)}"
        raise source.refusal(node, construct, "give it these")
    return [given[name] for name in params]


def exchange(path: str, values: list[ast.expr], at: ast.Call, fresh: Fresh) -> tuple[list[ast.stmt], ast.expr]:
    """The statements that a collective stands for, and its value.

    Args:
        path: which collective.
        values: its arguments.
        at: its call.
        fresh: makes a new variable from a word.
    """
    operation = COLLECTIVES[path]
    before: list[ast.stmt] = []
    operands: list[ast.expr] = []
    for param, value in zip(operation.params, values, strict=True):
        exchanged = param == operation.exchanged
        if exchanged or read_names(value):
            name = fresh(EXCHANGED if exchanged else OPERAND)
            before.append(assign(name, value, value))
            operands.append(ast.copy_location(load(name), value))
        else:
            operands.append(value)
    results = [fresh("got") for _ in range(operation.results)]
    if operation.is_vote:  # the same for all threads of the block; each then keeps it as its own
        count = fresh("vote")
        before.append(collective_statement(path, [count], operands, at))
        before.append(assign(results[0], load(count), at))
    else:
        before.append(collective_statement(path, results, operands, at))
    parts: list[ast.expr] = [load(name) for name in results]
    return before, place(parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load()), at)
