"""Takes out of an expression what must be a statement of its own, and keeps the order of evaluation.

`y = a[i] + shfl_down_sync(m, v, 1)` becomes `e = a[i]`, the exchange, and `y = e + r`.
"""

import ast
from typing import cast

from synknumba.simt._ast import assign, load
from synknumba.simt._source import Source


class Hoister(ast.NodeTransformer):
    """Visits statements and expressions.

    A subclass puts statements in `before` while it visits an expression; they end up in front of the statement around it.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.before: list[ast.stmt] = []
        self._count = 0

    def fresh(self, word: str) -> str:
        """A new variable of the generated code."""
        self._count += 1
        return f"_k_{word}{self._count}"

    # ---- statements

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements, each behind what it needs done first."""
        outer = self.before
        done: list[ast.stmt] = []
        for statement in body:
            self.before = []
            new = self.visit(statement)
            done += self.before
            done += new if isinstance(new, list) else [new]
        self.before = outer
        return done

    def visit_If(self, node: ast.If) -> ast.stmt:
        node.test = self.visit(node.test)
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        return node

    def visit_For(self, node: ast.For) -> ast.stmt:
        node.iter, node.target = self.visit(node.iter), self.visit(node.target)
        node.body = self.block(node.body)
        return node

    def visit_While(self, node: ast.While) -> ast.stmt:
        outer, self.before = self.before, []
        node.test = self.visit(node.test)
        first, self.before = self.before, outer
        node.body = self.block(node.body)
        if first:  # the condition is several statements, done again in each iteration
            leave = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Break()], [])
            node.body = [*first, ast.copy_location(leave, node), *node.body]
            node.test = ast.Constant(value=True)
            ast.fix_missing_locations(node)
        return node

    # ---- expressions

    def in_order(self, children: list[ast.expr]) -> list[ast.expr]:
        """Visits expressions that are evaluated one after the other."""
        done: list[ast.expr] = []
        for child in children:
            mark = len(self.before)
            new = cast(ast.expr, self.visit(child))
            if len(self.before) > mark:
                self.before[mark:mark] = self._save(done)
            done.append(new)
        return done

    def _save(self, earlier: list[ast.expr]) -> list[ast.stmt]:
        """Assignments of the expressions that what follows might change, which are then replaced by variables."""
        saved: list[ast.stmt] = []
        for position, node in enumerate(earlier):
            if any(isinstance(part, (ast.Subscript, ast.Call, ast.Attribute)) for part in ast.walk(node)):
                name = self.fresh("early")
                saved.append(assign(name, node, node))
                earlier[position] = ast.copy_location(load(name), node)
        return saved

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        node.left, node.right = self.in_order([node.left, node.right])
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        node.left, *node.comparators = self.in_order([node.left, *node.comparators])
        return node

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        node.elts = self.in_order(node.elts)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        node.value, node.slice = self.in_order([node.value, node.slice])
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        node.values = [self.visit(node.values[0]), *map(self._unconditional, node.values[1:])]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        node.test = self.visit(node.test)
        node.body, node.orelse = self._unconditional(node.body), self._unconditional(node.orelse)
        return node

    def _unconditional(self, node: ast.expr) -> ast.expr:
        mark = len(self.before)
        new = cast(ast.expr, self.visit(node))
        if len(self.before) > mark:
            construct = "an operation on several threads in a part of an expression that may not be evaluated"
            raise self.source.refusal(node, construct, "assign its value to a variable first")
        return new
