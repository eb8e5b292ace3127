"""`return`, `break` and `continue` inside a loop over threads: they end the turn of one thread, not the launch."""

import ast
from collections.abc import Iterable

from synknumba.simt._frontend.syntax import has_return, is_leave, own_exits, place, statements

LEFT = "_k_left"
EXIT = "_k_exit"

# The mask of a thread that runs; also above every level.
RUNNING = 127


def has_exit(body: Iterable[ast.stmt]) -> bool:
    """Whether a thread may leave these statements: for good, or the loop that stands directly around them."""
    body = list(body)
    return has_return(body) or next(own_exits(body), None) is not None


def with_conditions(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of one thread's last turn, with `if c: return` written as `if not c: …` around what follows.

    A condition can become bounds of the loop over threads, which a `return` cannot.

    Args:
        body: the statements; not changed.

    Returns:
        the same statements if one of them returns otherwise.
    """
    for position, statement in enumerate(body):
        if not isinstance(statement, ast.If) or statement.orelse or not is_leave(statement.body):
            continue
        rest = with_conditions(body[position + 1 :])
        if has_exit(rest):
            break
        test = statement.test
        stays = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else ast.UnaryOp(ast.Not(), test)
        return [*body[:position], place(ast.If(stays, rest or [ast.Pass()], []), statement)]
    return body


def lower_returns(body: list[ast.stmt], *, inside: bool = False) -> list[ast.stmt]:
    """The statements of one thread's last turn, with each `return` replaced by what goes on with the next thread.

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


def lower_exits(body: list[ast.stmt], loop: tuple[int, int] | None, *, inside: bool = False) -> list[ast.stmt]:
    """The statements of one thread's turn that is followed by other turns: each exit notes which level the thread leaves.

    What follows an exit runs only if the thread has not left: `if _k_exit == 127: …`.

    Args:
        body: the statements; changed in place.
        loop: the levels of the loop around the turn: of those that have left it, and of those that have ended this iteration.
        inside: whether the statements stand inside a loop of one thread, to which `break` and `continue` then belong.
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
            guard = statements(f"if {EXIT} == {RUNNING}:\n    pass", statement)[0]
            guard.body = rest  # type: ignore[attr-defined]
            done.append(place(guard, statement))
        return done
    return done
