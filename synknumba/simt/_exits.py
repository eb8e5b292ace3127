"""`return` inside a loop over threads: it ends the turn of one thread, not the launch."""

import ast

from synknumba.simt._ast import has_return, statements

LEFT = "_k_left"


def lower_returns(body: list[ast.stmt], *, inside: bool = False) -> list[ast.stmt]:
    """The statements of one thread's turn, with each `return` replaced by what goes on with the next thread.

    Outside the kernel's own loops that is `continue`. Inside one, a flag is set, the loops are left, and the flag is looked at
    behind each of them.

    Args:
        body: the statements; changed in place.
        inside: whether they stand inside a loop of the kernel.
    """
    done: list[ast.stmt] = []
    for statement in body:
        done += _lower(statement, inside=inside)
        if isinstance(statement, ast.Return):
            break
    return done


def _lower(statement: ast.stmt, *, inside: bool) -> list[ast.stmt]:
    if not has_return(statement):
        return [statement]
    match statement:
        case ast.Return():
            return statements(f"{LEFT} = True\nbreak", statement) if inside else [_continue(statement)]
        case ast.If():
            statement.body = lower_returns(statement.body, inside=inside)
            statement.orelse = lower_returns(statement.orelse, inside=inside)
            return [statement]
        case ast.For() | ast.While():
            statement.body = lower_returns(statement.body, inside=True)
            leave = ast.copy_location(ast.Break(), statement) if inside else _continue(statement)
            test = ast.copy_location(ast.Name(LEFT, ast.Load()), statement)
            behind = ast.copy_location(ast.If(test, [leave], []), statement)
            # In a loop inside a loop the flag is still what the outer loop set it to.
            before = [] if inside else statements(f"{LEFT} = False", statement)
            return [*before, statement, behind]
    return [statement]


def _continue(at: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Continue(), at)
