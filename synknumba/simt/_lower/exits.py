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
    return has_return(body) or has_own_exit(body, ast.stmt)


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
                branches = then, orelse
                if not any(map(_RETURNS.always_leaves, branches)):
                    return True
                if any(map(needs_flag, branches)):
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
            case []:
                return False
            case [*_, ast.If(_, then, orelse)]:
                return all(map(self.always_leaves, (then, orelse)))
        return type(body[-1]) in self._leave

    def lower(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Returns the statements without exits."""
        done: list[ast.stmt] = []
        for position, statement in enumerate(body):
            if type(statement) in self._leave:
                return done + self._exit(statement)
            if not has_exit([statement]):
                done.append(statement)
                continue
            rest = body[position + 1 :]
            match statement:
                case ast.If():
                    if self.always_leaves(statement.body):
                        statement.orelse, rest = statement.orelse + rest, []
                    elif self.always_leaves(statement.orelse):
                        statement.body, rest = statement.body + rest, []
                    statement.body = self.lower(statement.body)
                    statement.orelse = self.lower(statement.orelse)
                    done.append(_without_empty_branch(statement))
                case ast.For() | ast.While():
                    statement.body = self._lower_inside(statement.body)
                    done.append(statement)
            rest = self.lower(rest)
            if rest:
                done += around(f"if {self._running}:", rest, statement)
            return done
        return done

    def _lower_inside(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Returns the statements of an inner loop without `return`: each leaves the loop instead,
        to which `break` and `continue` belong.
        """
        done: list[ast.stmt] = []
        for statement in body:
            if isinstance(statement, ast.Return):
                return [*done, *self._exit(statement), place(ast.Break(), statement)]
            done.append(statement)
            if not has_return(statement):
                continue
            match statement:
                case ast.If():
                    statement.body = self._lower_inside(statement.body)
                    statement.orelse = self._lower_inside(statement.orelse)
                    done[-1] = _without_empty_branch(statement)
                case ast.For() | ast.While():
                    statement.body = self._lower_inside(statement.body)
                    done += statements(f"if not {self._running}:\n    break", statement)
        return done

    def _exit(self, statement: ast.stmt) -> list[ast.stmt]:
        done: list[ast.stmt] = []
        match statement:
            case ast.Return(ast.expr() as value) if self._result:
                done.append(assign(self._result, value, statement))
        return done + statements("\n".join(self._leave[type(statement)]), statement)


_RETURNS = _Lowering({ast.Return: []})


def _without_empty_branch(statement: ast.If) -> ast.If:
    """Returns `if c: pass` with an `else` as `if not c:`."""
    if statement.body:
        return statement
    match statement.test:
        case ast.UnaryOp(ast.Not(), operand):
            test = operand
        case positive:
            test = ast.UnaryOp(ast.Not(), positive)
    return place(ast.If(test, statement.orelse or [ast.Pass()], []), statement)
