"""Hoists operations that must be statements out of expressions, keeping the order of evaluation.

`y = a[i] + shfl_down_sync(m, v, 1)` becomes `e = a[i]`, the exchange, and `y = e + r`.
"""

import ast
from typing import cast

from synknumba.simt._source.syntax import assign, copied, load, nodes_of, place, store, walk
from synknumba.simt._source.written import Source


class Hoister(ast.NodeTransformer):
    """Visits statements and expressions.

    A subclass appends to `before` while it visits an expression; these statements go in front of
    the enclosing statement.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.before: list[ast.stmt] = []
        self._count = 0
        self._rebound = {node.target.id for node in nodes_of(ast.NamedExpr, source.tree)}

    def fresh(self, word: str) -> str:
        """Returns a new variable name for the generated code."""
        self._count += 1
        return f"_k_{word}{self._count}"

    # ---- statements

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Visits statements and returns them, each preceded by the statements hoisted from it."""
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
        if first:  # the condition takes several statements, repeated in each iteration
            leave = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Break()], [])
            node.body = [*first, ast.copy_location(leave, node), *node.body]
            node.test = ast.Constant(value=True)
            ast.fix_missing_locations(node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt | list[ast.stmt]:
        node.target = target = self.visit(node.target)
        mark = len(self.before)
        node.value = self.visit(node.value)
        if len(self.before) == mark or not isinstance(target, (ast.Subscript, ast.Attribute)):
            return node
        hoisted, self.before[mark:] = self.before[mark:], []
        # Python reads the element before it evaluates the value, and the value may change the
        # element.
        self._save_parts(target, self.before)
        name = self.fresh("element")
        element = copied(target)
        element.ctx = ast.Load()
        self.before += [assign(name, element, node), *hoisted]
        changed = ast.AugAssign(store(name), node.op, node.value)
        return [place(changed, node), place(ast.Assign([target], load(name)), node)]

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        node.test = self.visit(node.test)
        node.msg = node.msg and self._unconditional(node.msg)
        return node

    def assigned(self, targets: list[ast.expr], value: ast.expr) -> tuple[list[ast.expr], ast.expr]:
        """Visits the targets of an assignment, and returns them with its value, which is
        evaluated before them.
        """
        mark = len(self.before)
        new = [cast(ast.expr, self.visit(target)) for target in targets]
        if len(self.before) == mark:
            return new, value
        if len(new) > 1 or isinstance(new[0], ast.Tuple):
            construct = "a synchronising operation in one of several targets of an assignment"
            raise self.source.refusal(targets[0], construct, "assign its value to a variable first")
        done = [value]
        self.before[mark:mark] = self._save(done)
        return new, done[0]

    # ---- expressions

    def in_order(self, children: list[ast.expr]) -> list[ast.expr]:
        """Visits expressions that are evaluated left to right."""
        done: list[ast.expr] = []
        for child in children:
            mark = len(self.before)
            new = cast(ast.expr, self.visit(child))
            if len(self.before) > mark:
                self.before[mark:mark] = self._save(done)
            done.append(new)
        return done

    def _save(self, earlier: list[ast.expr]) -> list[ast.stmt]:
        """Replaces expressions that later statements might change by variables, in place, and
        returns their assignments.
        """
        saved: list[ast.stmt] = []
        earlier[:] = [self._saved(node, saved) for node in earlier]
        return saved

    def _saved(self, node: ast.expr, saved: list[ast.stmt]) -> ast.expr:
        # not an expression of its own, but its parts are
        match node:
            case ast.Slice() | ast.Starred():
                self._save_parts(node, saved)
                return node
            case ast.Tuple():
                node.elts = [self._saved(element, saved) for element in node.elts]
                return node
        if not any(map(self._may_change, walk(node))):
            return node
        name = self.fresh("early")
        saved.append(assign(name, node, node))
        return ast.copy_location(load(name), node)

    def _may_change(self, node: ast.AST) -> bool:
        """Returns whether hoisted statements may change the value of a node: they write memory,
        and assign what `:=` does.
        """
        match node:
            case ast.Name(name):
                return name in self._rebound
            case ast.Subscript() | ast.Call() | ast.Attribute():
                return True
        return False

    def _save_parts(self, node: ast.expr, saved: list[ast.stmt]) -> None:
        for name, part in _parts(node).items():
            setattr(node, name, self._saved(part, saved))

    def _visit_parts(self, node: ast.expr) -> ast.expr:
        parts = _parts(node)
        for name, part in zip(parts, self.in_order([*parts.values()]), strict=True):
            setattr(node, name, part)
        return node

    visit_BinOp = visit_Subscript = visit_Slice = _visit_parts

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        node.left, node.comparators[0] = self.in_order([node.left, node.comparators[0]])
        node.comparators[1:] = map(self._unconditional, node.comparators[1:])
        return node

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        node.elts = self.in_order(node.elts)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        self.before.append(assign(node.target.id, self.visit(node.value), node))
        return ast.copy_location(load(node.target.id), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """Visits `a and b`; if `b` takes statements: `v = a`, and `if v:` these and `v = b`."""
        first, *operands = node.values
        done: list[ast.expr] = [self.visit(first)]
        for operand in operands:
            value, statements = self._apart(operand)
            if not statements:
                done.append(value)
                continue
            name = self.fresh("so_far")
            self.before.append(assign(name, _joined(node, done), node))
            test: ast.expr = load(name)
            if isinstance(node.op, ast.Or):
                test = ast.UnaryOp(ast.Not(), test)
            branch = [*statements, assign(name, value, node)]
            self.before.append(place(ast.If(test, branch, []), node))
            done = [ast.copy_location(load(name), node)]
        return _joined(node, done)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        node.test = self.visit(node.test)
        node.body, then = self._apart(node.body)
        node.orelse, otherwise = self._apart(node.orelse)
        if not then and not otherwise:
            return node
        name = self.fresh("chosen")
        then.append(assign(name, node.body, node))
        otherwise.append(assign(name, node.orelse, node))
        self.before.append(place(ast.If(node.test, then, otherwise), node))
        return ast.copy_location(load(name), node)

    def _apart(self, node: ast.expr) -> tuple[ast.expr, list[ast.stmt]]:
        """Visits an expression that is evaluated under a condition; returns it, and the
        statements hoisted from it.
        """
        outer, self.before = self.before, []
        value = cast(ast.expr, self.visit(node))
        statements, self.before = self.before, outer
        return value, statements

    def _unconditional(self, node: ast.expr) -> ast.expr:
        mark = len(self.before)
        new = cast(ast.expr, self.visit(node))
        if len(self.before) > mark:
            construct = (
                "a synchronising operation in a conditionally evaluated part of an expression"
            )
            raise self.source.refusal(node, construct, "assign its value to a variable first")
        return new


def _joined(node: ast.BoolOp, values: list[ast.expr]) -> ast.expr:
    """Returns the only value, or several under the operator of the node."""
    if len(values) == 1:
        return values[0]
    return ast.copy_location(ast.BoolOp(node.op, values), node)


def _parts(node: ast.expr) -> dict[str, ast.expr]:
    """Returns the expressions directly inside another, by field, in source order."""
    return {name: part for name, part in ast.iter_fields(node) if isinstance(part, ast.expr)}
