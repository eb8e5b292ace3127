"""Flattening of the grid for kernels that use only the global thread index.

Where the thread and block indices of an axis occur only as `blockIdx * blockDim + threadIdx`, the
division into blocks has no effect, and the whole axis runs as one block. The loop is then as long
as a handwritten one, whatever the block size.
"""

import ast

from synknumba.simt._library.words import AXES, BLOCK, BLOCK_SIZE, LINEAR, STATE, THREAD
from synknumba.simt._source.syntax import (
    all_copied,
    count_each,
    count_names,
    count_stores,
    load,
    rename,
)


def flatten(body: list[ast.stmt]) -> tuple[list[ast.stmt], frozenset[str]]:
    """Replaces `_k_bx * _k_Bx + _k_tx` by `_k_tx`, for each axis whose indices occur in no other
    way.

    Returns:
        The new statements, `body` being left unchanged; the flattened axes.
    """
    body = _without_aliases(all_copied(body))
    if count_names(body, LINEAR):
        return body, frozenset()
    flat = set()
    for axis in AXES:
        folder = _Folder(axis)
        folded = [folder.visit(statement) for statement in all_copied(body)]
        counts = count_each(folded)
        if (counts[BLOCK[axis]], counts[THREAD[axis]]) == (0, folder.count):
            body = folded
            flat.add(axis)
    return body, frozenset(flat)


class _Folder(ast.NodeTransformer):
    """Replaces the global thread index of an axis by the thread index, and counts the
    replacements.
    """

    def __init__(self, axis: str) -> None:
        self.count = 0
        self._thread, self._factors = THREAD[axis], {BLOCK[axis], BLOCK_SIZE[axis]}

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        match node:
            case ast.BinOp(
                ast.BinOp(ast.Name(left), ast.Mult(), ast.Name(right)), ast.Add(), ast.Name(thread)
            ) | ast.BinOp(
                ast.Name(thread), ast.Add(), ast.BinOp(ast.Name(left), ast.Mult(), ast.Name(right))
            ) if (thread, {left, right}) == (self._thread, self._factors):
                self.count += 1
                return ast.copy_location(load(thread), node)
        return self.generic_visit(node)


def _without_aliases(body: list[ast.stmt]) -> list[ast.stmt]:
    """Replaces variables that only alias an index, as after `tx = cuda.threadIdx.x`, by the
    index.
    """
    stores = count_stores(body)
    aliases: dict[str, str] = {}
    remaining: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.Assign([ast.Name(name)], ast.Name(state)) if state in STATE:
                if stores[name] == 1:
                    aliases[name] = state
                    continue
        remaining.append(statement)
    rename(remaining, aliases)
    return remaining
