"""Lowering of `return`, `break` and `continue` in a loop over threads, where they end one thread's
iteration.

An *iteration* is one thread's pass through such a loop.
"""

import ast
from collections.abc import Iterable

from synknumba.simt._source.syntax import has_return, is_leave, load, own_exits, place, statements

LEFT = "_k_left"
EXIT = "_k_exit"

# Mask of a running thread (the largest int8); greater than every level.
RUNNING = 127


def around(head: str, body: list[ast.stmt], at: ast.AST) -> list[ast.stmt]:
    """Returns the statement that starts with this line, such as `if a:`, around the body; around
    `pass` if that is empty.
    """
    made = statements(f"{head}\n    pass", at)
    made[0].body = body or made[0].body  # type: ignore[attr-defined]
    return made


def has_exit(body: Iterable[ast.stmt]) -> bool:
    """Returns whether the statements contain a `return`, or a `break` or `continue` of the loop
    directly around them.
    """
    body = list(body)
    return has_return(body) or next(own_exits(body), None) is not None


def with_conditions(body: list[ast.stmt]) -> list[ast.stmt]:
    """Rewrites `if c: return` in a thread's last iteration as `if not c: …` around the statements
    after it.

    A condition can become bounds of the loop over threads; a `return` cannot. The body is not
    changed; it is returned itself if the statements after the `if` may exit in another way.
    """
    for position, statement in enumerate(body):
        if not isinstance(statement, ast.If) or statement.orelse or not is_leave(statement.body):
            continue
        rest = with_conditions(body[position + 1 :])
        if has_exit(rest):
            break
        test = statement.test
        stays = (
            test.operand
            if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
            else ast.UnaryOp(ast.Not(), test)
        )
        return [*body[:position], place(ast.If(stays, rest or [ast.Pass()], []), statement)]
    return body


def lower_returns(body: list[ast.stmt], *, inside: bool = False) -> list[ast.stmt]:
    """Replaces each `return` in a thread's last iteration by code that continues with the next
    thread.

    Outside the kernel's own loops that is `continue`. `inside` one, it sets a flag and breaks; the
    flag is tested after each enclosing loop. The statements are changed in place.
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
            return (
                statements(f"{LEFT} = True\nbreak", statement)
                if inside
                else [place(ast.Continue(), statement)]
            )
        case ast.If():
            statement.body = lower_returns(statement.body, inside=inside)
            statement.orelse = lower_returns(statement.orelse, inside=inside)
            return [statement]
        case ast.For() | ast.While():
            statement.body = lower_returns(statement.body, inside=True)
            behind = place(
                ast.If(load(LEFT), [ast.Break() if inside else ast.Continue()], []), statement
            )
            # Only the outermost loop clears the flag: a set flag ends all loops, so an inner loop
            # always finds it cleared.
            before = [] if inside else statements(f"{LEFT} = False", statement)
            return [*before, statement, behind]
    return [statement]


def lower_exits(
    body: list[ast.stmt], loop: tuple[int, int] | None, *, inside: bool = False
) -> list[ast.stmt]:
    """Replaces the exits in a thread's iteration that is not its last: each exit records the mask
    that the thread gets.

    Statements after an exit run only if the thread has not exited: `if _k_exit == 127: …`.

    Args:
        body: the statements; changed in place.
        loop: the masks of threads that have left the loop around the iteration, and of threads that
            have ended its iteration.
        inside: whether the statements are inside a loop of one thread, to which `break` and
            `continue` then belong.
    """
    done: list[ast.stmt] = []
    for position, statement in enumerate(body):
        if isinstance(statement, ast.Return):
            return done + statements(f"{EXIT} = 0" + ("\nbreak" if inside else ""), statement)
        if isinstance(statement, (ast.Break, ast.Continue)) and not inside and loop is not None:
            level = loop[0] if isinstance(statement, ast.Break) else loop[1]
            return done + statements(f"{EXIT} = {level}", statement)
        done.append(statement)
        if not (has_return(statement) or (not inside and has_exit([statement]))):
            continue
        if isinstance(statement, ast.If):
            statement.body = lower_exits(statement.body, loop, inside=inside)
            statement.orelse = lower_exits(statement.orelse, loop, inside=inside)
        elif isinstance(statement, (ast.For, ast.While)):
            statement.body = lower_exits(statement.body, loop, inside=True)
            if inside:
                done += statements(f"if {EXIT} != {RUNNING}:\n    break", statement)
        rest = lower_exits(body[position + 1 :], loop, inside=inside)
        if rest:
            done += around(f"if {EXIT} == {RUNNING}:", rest, statement)
        return done
    return done
