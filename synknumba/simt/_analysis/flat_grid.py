"""The grid of a kernel without barriers, whose threads may be divided into other blocks.

Where the thread and block indices of an axis occur only as `blockIdx * blockDim + threadIdx`, the
division into blocks has no effect, and the whole axis runs as one block. The loop is then as long
as a handwritten one, whatever the block size.

Blocks of few threads leave the lanes of vector instructions empty. In a launch of many such blocks,
all indices are computed from the global thread index, and the threads are divided into blocks of
`LANES`.
"""

import ast
from collections.abc import Iterable

from synknumba.simt._analysis.team import LINEAR_TEXT
from synknumba.simt._library.words import AXES, BLOCK, BLOCK_SIZE, LINEAR, STATE, THREAD
from synknumba.simt._lower.exits import has_own_exit
from synknumba.simt._source.syntax import (
    all_copied,
    count_each,
    count_names,
    count_stores,
    expression,
    has_return,
    load,
    rename,
    walk_statements,
)

# Threads of a block into which those of small blocks are gathered, as many as are usual on a GPU.
LANES = 256

# Global thread index along each axis, while `regroup` replaces the others.
_NUMBER = {axis: f"_k_n{axis}" for axis in AXES}


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
        folder = _Folder(axis, THREAD[axis])
        folded = [folder.visit(statement) for statement in all_copied(body)]
        counts = count_each(folded)
        if (counts[BLOCK[axis]], counts[THREAD[axis]]) == (0, folder.count):
            body = folded
            flat.add(axis)
    return body, frozenset(flat)


def regroup(body: list[ast.stmt], block: tuple[int, ...]) -> list[ast.stmt]:
    """Rewrites the indices of a thread for a launch in blocks of another size.

    Args:
        body: statements of a thread of the launch with the given blocks; not changed.
        block: threads of these blocks along each axis.

    Returns:
        The statements, in which thread and block indices and the block size are of the other
        launch; the grid size is still that of the given one.
    """
    body = _without_aliases(all_copied(body))
    places, numbers = {}, {}
    for axis, size in zip(AXES, block, strict=True):
        folder = _Folder(axis, _NUMBER[axis])
        body = [folder.visit(statement) for statement in body]
        places[BLOCK_SIZE[axis]] = str(size)
        if size == 1:
            places |= {BLOCK[axis]: _NUMBER[axis], THREAD[axis]: "0"}
        else:
            places[BLOCK[axis]] = f"_k_nonneg({_NUMBER[axis]}) // {size}"
            places[THREAD[axis]] = f"_k_nonneg({_NUMBER[axis]}) % {size}"
        numbers[_NUMBER[axis]] = f"{BLOCK[axis]} * {BLOCK_SIZE[axis]} + {THREAD[axis]}"
    for texts in ({LINEAR: LINEAR_TEXT}, places, numbers):
        replacer = _Replacer(texts)
        body = [replacer.visit(statement) for statement in body]
    return body


def may_wait(body: Iterable[ast.stmt]) -> bool:
    """Returns whether a thread may wait for what threads of blocks before it write, as for a lock:
    whether there is a loop that may end by what is read in it.
    """
    for statement in walk_statements(body):
        match statement:
            case ast.While():
                return True
            case ast.For(body=inner) if has_return(inner) or has_own_exit(inner, ast.Break):
                return True
    return False


class _Replacer(ast.NodeTransformer):
    """Replaces names by expressions."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        text = self._texts.get(node.id)
        return node if text is None else expression(text, node)


class _Folder(ast.NodeTransformer):
    """Replaces the global thread index of an axis by a name, and counts the replacements."""

    def __init__(self, axis: str, name: str) -> None:
        self.count, self._name = 0, name
        self._thread, self._factors = THREAD[axis], {BLOCK[axis], BLOCK_SIZE[axis]}

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        match node:
            case ast.BinOp(
                ast.BinOp(ast.Name(left), ast.Mult(), ast.Name(right)), ast.Add(), ast.Name(thread)
            ) | ast.BinOp(
                ast.Name(thread), ast.Add(), ast.BinOp(ast.Name(left), ast.Mult(), ast.Name(right))
            ) if (thread, {left, right}) == (self._thread, self._factors):
                self.count += 1
                return ast.copy_location(load(self._name), node)
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
