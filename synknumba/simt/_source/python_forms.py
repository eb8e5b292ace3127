"""Rewrites Python statements that Numba takes and the later stages do not know, before any names
are looked up.

match n: case 1 | 2: …     if n == 1 or n == 2: …
for d in [1, -1]           for d in (1, -1), as CPython compiles it; `n in [1, 2]` as well
global G                   nothing, if G is only read
del y                      nothing, if y is not read behind it
"""

import ast
from typing import cast

from synknumba.simt._source.syntax import assign, assigned_names, copied, load, place

MATCHED = "_k_matched"  # prefix of the variables that hold what is matched

_OPERATIONS = (ast.In, ast.NotIn)


class PythonForms(ast.NodeTransformer):
    """Rewrites a function's tree in place; leaves forms that it does not know as they are, to be
    refused.
    """

    def __init__(self, tree: ast.FunctionDef) -> None:
        self._assigned = assigned_names(tree)
        self._count = 0

    def visit_Global(self, node: ast.Global) -> ast.stmt:
        if self._assigned.isdisjoint(node.names):
            return _pass(node)
        return node

    def visit_Delete(self, node: ast.Delete) -> ast.stmt:
        """Removes a `del` of variables: where the program reads none of them before a new
        assignment, it changes nothing.
        """
        if all(isinstance(part, ast.Name) for part in node.targets):
            return _pass(node)
        return node

    # ---- lists that are never made

    def visit_For(self, node: ast.For) -> ast.stmt:
        node.iter = _as_tuple(node.iter)
        return cast(ast.stmt, self.generic_visit(node))

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        for position, op in enumerate(node.ops):
            if isinstance(op, _OPERATIONS):
                node.comparators[position] = _as_tuple(node.comparators[position])
        return cast(ast.expr, self.generic_visit(node))

    # ---- match

    def visit_Match(self, node: ast.Match) -> ast.stmt | list[ast.stmt]:
        self.generic_visit(node)
        self._count += 1
        name = f"{MATCHED}{self._count}"
        chain: list[ast.stmt] = []
        for case in reversed(node.cases):
            statements = self._case(case, name, chain)
            if statements is None:
                return node
            chain = statements
        return [assign(name, node.subject, node), *chain]

    def _case(
        self, case: ast.match_case, name: str, orelse: list[ast.stmt]
    ) -> list[ast.stmt] | None:
        """Returns the statements of a case, with those of the cases after it; None for patterns
        other than values.
        """
        test = _test(case.pattern, name)
        if test is None:
            return None
        body, captured = case.body, _captured(case.pattern)
        if captured is not None:
            capture = assign(captured, load(name), case.pattern)
            if case.guard is not None:  # which may read the name
                if test is not True:
                    return None
                return [capture, place(ast.If(case.guard, body, orelse), case.pattern)]
            body = [capture, *body]
        match [part for part in (test, case.guard) if isinstance(part, ast.expr)]:
            case []:
                return body
            case [condition]:
                pass
            case tests:
                condition = ast.BoolOp(ast.And(), tests)
        return [place(ast.If(condition, body, orelse), case.pattern)]


def _test(pattern: ast.pattern, name: str) -> ast.expr | bool | None:
    """Returns the condition for a pattern of values, True if it always holds, None for any other
    pattern.
    """
    match pattern:
        case ast.MatchValue(value=value):
            return place(ast.Compare(load(name), [ast.Eq()], [copied(value)]), pattern)
        case ast.MatchSingleton(value=value):
            return place(ast.Compare(load(name), [ast.Is()], [ast.Constant(value)]), pattern)
        case ast.MatchAs(pattern=None):
            return True
        case ast.MatchAs(pattern=inner) if inner is not None:
            return _test(inner, name)
        case ast.MatchOr(patterns=patterns) if not any(map(_captured, patterns)):
            tests = [_test(alternative, name) for alternative in patterns]
            if all(isinstance(test, ast.expr) for test in tests):
                return place(ast.BoolOp(ast.Or(), cast("list[ast.expr]", tests)), pattern)
    return None


def _captured(pattern: ast.pattern) -> str | None:
    """Returns the variable that a pattern of values assigns, as in `case 1 | 2 as n` and
    `case n`.
    """
    if isinstance(pattern, ast.MatchAs):
        return pattern.name
    return None


def _as_tuple(node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.List):
        return node
    return ast.copy_location(ast.Tuple(node.elts, ast.Load()), node)


def _pass(node: ast.stmt) -> ast.stmt:
    return ast.copy_location(ast.Pass(), node)
