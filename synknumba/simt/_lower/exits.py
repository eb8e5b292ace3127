"""Lowering of `return`, `break` and `continue` where the statements after them must still be there,
as in a function pasted into another one or in one iteration of a loop over threads.

    if a:                       if not a:                  going = True
        return                      b = 1                  for i in x:
    b = 1                                                      if a:
                                for i in x:       →                going = False
                        →           if a:                          break
                                        return             if going:
                                b = 1                          b = 1
"""

import ast
from collections.abc import Iterable, Mapping, Sequence

from synknumba.simt._source.syntax import assign, has_return, own_exits, place, statements

# Mask of a running thread (the largest int8); greater than every level.
RUNNING = 127


def around(head: str, body: list[ast.stmt], at: ast.AST) -> list[ast.stmt]:
    """Returns the statement that starts with this line, such as `if a:`, around the body; around
    `pass` if that is empty.
    """
    block = statements(f"{head}\n    pass", at)
    block[0].body = body or block[0].body  # type: ignore[attr-defined]
    return block


def has_exit(body: Iterable[ast.stmt]) -> bool:
    """Returns whether the statements contain a `return`, or a `break` or `continue` of the loop
    directly around them.
    """
    body = list(body)
    return has_return(body) or next(own_exits(body), None) is not None


def has_own_exit(body: Iterable[ast.stmt], kind: type[ast.stmt]) -> bool:
    """Returns whether the loop with this body has an exit of this kind, `break` or `continue`."""
    return any(isinstance(leave, kind) for leave in own_exits(body))


def needs_flag(body: Sequence[ast.stmt]) -> bool:
    """Returns whether conditions around statements do not suffice to skip what a `return` skips."""
    for statement in body:
        if not has_return(statement):
            continue
        match statement:
            case ast.Return():
                return False
            case ast.If(body=then, orelse=orelse):
                returns = _RETURNS.always_leaves(then) or _RETURNS.always_leaves(orelse)
                if not returns or needs_flag(then) or needs_flag(orelse):
                    return True
            case _:
                return True
    return False


def lower_returns(body: list[ast.stmt], flag: str, result: str = "") -> list[ast.stmt]:
    """Replaces each `return` by conditions around the statements that it skips.

    Args:
        body: the statements; changed in place.
        flag: a new variable, for a `return` where conditions do not suffice.
        result: the variable that gets the value of a `return`.
    """
    if not needs_flag(body):
        return _Lowering({ast.Return: []}, result=result).lower(body)
    lowering = _Lowering({ast.Return: [f"{flag} = False"]}, flag, result)
    return [*statements(f"{flag} = True", body[0]), *lowering.lower(body)]


def lower_exits(body: list[ast.stmt], mask: str, loop: tuple[int, int] | None) -> list[ast.stmt]:
    """Replaces the exits in a thread's iteration that is not its last: each sets the mask that the
    thread gets, and the statements that it skips run only while that is `RUNNING`.

    Args:
        body: the statements; changed in place.
        mask: the variable.
        loop: the masks of threads that have left the loop around the iteration, and of threads that
            have ended its iteration.
    """
    leave: dict[type[ast.stmt], list[str]] = {ast.Return: [f"{mask} = 0"]}
    if loop is not None:
        leave[ast.Break], leave[ast.Continue] = [f"{mask} = {loop[0]}"], [f"{mask} = {loop[1]}"]
    return _Lowering(leave, f"{mask} == {RUNNING}").lower(body)


class _Lowering:
    """Replaces exits.

    Args:
        leave: by the kind of exit, what is written in its place.
        running: the condition under which a thread has not exited.
        result: the variable that gets the value of a `return`.
    """

    def __init__(
        self, leave: Mapping[type[ast.stmt], list[str]], running: str = "", result: str = ""
    ) -> None:
        self._leave, self._running, self._result = leave, running, result

    def always_leaves(self, body: Sequence[ast.stmt]) -> bool:
        """Returns whether every path through the statements ends in an exit."""
        match body:
            case [*_, ast.If(body=then, orelse=orelse)]:
                return self.always_leaves(then) and self.always_leaves(orelse)
        return bool(body) and type(body[-1]) in self._leave

    def lower(self, body: list[ast.stmt], *, inside: bool = False) -> list[ast.stmt]:
        """Returns the statements without exits; `inside`: they are in a loop of their own, to
        which `break` and `continue` belong.
        """
        done: list[ast.stmt] = []
        for position, statement in enumerate(body):
            if isinstance(statement, ast.Return) or (not inside and type(statement) in self._leave):
                return done + self._exit(statement, inside=inside)
            if not (has_return(statement) if inside else has_exit([statement])):
                done.append(statement)
                continue
            rest = body[position + 1 :]
            if isinstance(statement, ast.If):
                if not inside and self.always_leaves(statement.body):
                    statement.orelse, rest = statement.orelse + rest, []
                elif not inside and self.always_leaves(statement.orelse):
                    statement.body, rest = statement.body + rest, []
                statement.body = self.lower(statement.body, inside=inside)
                statement.orelse = self.lower(statement.orelse, inside=inside)
                done.append(_without_empty_branch(statement))
            elif isinstance(statement, (ast.For, ast.While)):
                statement.body = self.lower(statement.body, inside=True)
                done.append(statement)
                if inside:
                    done += statements(f"if not {self._running}:\n    break", statement)
            rest = self.lower(rest, inside=inside)
            # Inside a loop, an exit has left it.
            guarded = rest and not inside
            return done + (around(f"if {self._running}:", rest, statement) if guarded else rest)
        return done

    def _exit(self, statement: ast.stmt, *, inside: bool) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        if isinstance(statement, ast.Return) and statement.value is not None and self._result:
            done.append(assign(self._result, statement.value, statement))
        lines = [*self._leave[type(statement)], *(["break"] if inside else [])]
        return done + statements("\n".join(lines), statement)


_RETURNS = _Lowering({ast.Return: []})


def _without_empty_branch(statement: ast.If) -> ast.If:
    """Returns `if c: pass` with an `else` as `if not c:`."""
    if statement.body:
        return statement
    test: ast.expr = ast.UnaryOp(ast.Not(), statement.test)
    if isinstance(statement.test, ast.UnaryOp) and isinstance(statement.test.op, ast.Not):
        test = statement.test.operand
    return place(ast.If(test, statement.orelse or [ast.Pass()], []), statement)
