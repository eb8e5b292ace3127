"""Reads of local variables that some path to them does not assign."""

import ast

# Names assigned on all paths to a point; None where no path leads to.
_Assigned = set[str] | None


def unassigned_reads(tree: ast.FunctionDef) -> list[ast.Name]:
    """Returns the reads of local variables that may come before their assignment, by any path that
    the syntax allows.

    The target of an augmented assignment is one. Names inside nested functions are left out.
    """
    params = {arg.arg for arg in ast.walk(tree.args) if isinstance(arg, ast.arg)}
    paths = _Paths(_stored(tree))
    paths.body(tree.body, params)
    return paths.found


def _stored(tree: ast.FunctionDef) -> set[str]:
    nodes = ast.walk(tree)
    return {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _meet(states: list[_Assigned]) -> _Assigned:
    known = [state for state in states if state is not None]
    return set.intersection(*known) if known else None


class _Paths:
    """Follows the paths through a function."""

    def __init__(self, names: set[str]) -> None:
        self.found: list[ast.Name] = []
        self._names = names
        self._breaks: list[list[_Assigned]] = []

    def body(self, body: list[ast.stmt], assigned: _Assigned) -> _Assigned:
        """Returns the names assigned behind the statements."""
        for statement in body:
            if assigned is None:
                return None
            assigned = self._statement(statement, set(assigned))
        return assigned

    def _statement(self, node: ast.stmt, assigned: set[str]) -> _Assigned:
        match node:
            case ast.Assign(targets=targets, value=value):
                self._read(value, assigned)
                return assigned.union(*(self._target(target, assigned) for target in targets))
            case ast.AugAssign(target=target, value=value):
                self._read(value, assigned)
                if isinstance(target, ast.Name):
                    self._note(target, assigned)
                return assigned | self._target(target, assigned)
            case ast.AnnAssign(target=target, value=value):
                if value is None:
                    return assigned
                self._read(value, assigned)
                return assigned | self._target(target, assigned)
            case ast.If(test=test, body=body, orelse=orelse):
                self._read(test, assigned)
                return _meet([self.body(body, assigned), self.body(orelse, assigned)])
            case ast.While(test=test, body=body, orelse=orelse):
                self._read(test, assigned)
                is_endless = isinstance(test, ast.Constant) and bool(test.value)
                return self._loop(body, assigned, orelse, None if is_endless else assigned)
            case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
                self._read(iterated, assigned)
                return self._loop(body, assigned | self._target(target, assigned), orelse, assigned)
            case ast.Break():
                self._breaks[-1].append(assigned)
                return None
            case ast.Continue():
                return None
            case ast.Return() | ast.Raise():
                self._read(node, assigned)
                return None
            case ast.FunctionDef():
                return assigned
        self._read(node, assigned)
        return assigned

    def _loop(
        self, body: list[ast.stmt], inside: set[str], orelse: list[ast.stmt], behind: _Assigned
    ) -> _Assigned:
        self._breaks.append([])
        self.body(body, inside)
        left = self._breaks.pop()
        return _meet([self.body(orelse, behind), *left])

    def _target(self, node: ast.expr, assigned: set[str]) -> set[str]:
        """Returns the names that an assignment to a target sets."""
        if isinstance(node, ast.Name):
            return {node.id}
        if isinstance(node, (ast.Tuple, ast.List)):
            return set().union(*(self._target(part, assigned) for part in node.elts))
        self._read(node, assigned)
        return set()

    def _read(self, node: ast.AST, assigned: set[str]) -> None:
        if isinstance(node, (ast.Lambda, ast.FunctionDef)):
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self._note(node, assigned)
        for part in ast.iter_child_nodes(node):
            self._read(part, assigned)

    def _note(self, node: ast.Name, assigned: set[str]) -> None:
        if node.id in self._names and node.id not in assigned:
            self.found.append(node)
