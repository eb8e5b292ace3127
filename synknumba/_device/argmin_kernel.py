"""The best row by kernels: "argmin" and "argmax" where NumPy cannot reach.

    scores (n, m) ── search ──> one candidate of each block (B, m) ── settle ──> the best so far (m), and its row

A candidate is a value and its row. Of two, the one whose value is less (or greater) is the better; NaN is better than any
number, as in NumPy; of equals the one with the lower row. So it does not matter in which order candidates meet. Row −1 stands
for none.
"""

from collections.abc import Callable
from typing import Any

THREADS = 256  # of a block
MOST_BLOCKS = 256  # that search a column: as many candidates as a block has threads
MOST_COLUMNS = 65_535  # at once, which is the largest second axis of a grid


def search_grid(rows: int, columns: int) -> tuple[int, int, int]:
    """The blocks of `search`, and along the second axis alone of `settle`."""
    return max(1, min(-(-rows // THREADS), MOST_BLOCKS)), max(1, min(columns, MOST_COLUMNS)), 1


def locating_kernels(op: str, dtype: Any) -> tuple[Callable[..., None], Callable[..., None]]:
    """`search` and `settle` for values of a dtype; plain functions in Numba's CUDA dialect."""
    from numba import cuda, from_dtype, int64  # not when synknumba is imported

    value_type = from_dtype(dtype)
    is_better = cuda.jit(device=True)(_is_less if op == "argmin" else _is_greater)

    @cuda.jit(device=True)
    def meet(values: Any, rows: Any, here: int, there: int) -> None:
        """The better of two candidates stays here."""
        if rows[there] >= 0:
            value, other = values[here], values[there]
            first = not is_better(value, other) and rows[there] < rows[here]
            if rows[here] < 0 or is_better(other, value) or first:
                values[here], rows[here] = other, rows[there]

    def search(scores: Any, first: int, values: Any, rows: Any) -> None:
        """Block b's candidate of column j to values[b, j] and rows[b, j]; row i of the scores is row first + i."""
        best_values = cuda.shared.array(256, value_type)
        best_rows = cuda.shared.array(256, int64)
        thread = cuda.threadIdx.x
        for j in range(cuda.blockIdx.y, scores.shape[1], cuda.gridDim.y):
            value, row = scores[0, j], -1
            for i in range(cuda.grid(1), scores.shape[0], cuda.gridsize(1)):
                if row < 0 or is_better(scores[i, j], value):  # rows rise, so of equals the first stays
                    value, row = scores[i, j], i
            best_values[thread], best_rows[thread] = value, row
            cuda.syncthreads()
            step = 128
            while step > 0:
                if thread < step:
                    meet(best_values, best_rows, thread, thread + step)
                cuda.syncthreads()
                step //= 2
            if thread == 0:
                values[cuda.blockIdx.x, j] = best_values[0]
                rows[cuda.blockIdx.x, j] = first + best_rows[0] if best_rows[0] >= 0 else -1
            cuda.syncthreads()

    def settle(found_values: Any, found_rows: Any, values: Any, rows: Any) -> None:
        """The best of the candidates, and of what is in values[j] and rows[j], to there."""
        best_values = cuda.shared.array(256, value_type)
        best_rows = cuda.shared.array(256, int64)
        thread = cuda.threadIdx.x
        for j in range(cuda.blockIdx.y, found_values.shape[1], cuda.gridDim.y):
            best_rows[thread] = -1
            if thread < found_values.shape[0]:
                best_values[thread], best_rows[thread] = found_values[thread, j], found_rows[thread, j]
            cuda.syncthreads()
            step = 128
            while step > 0:
                if thread < step:
                    meet(best_values, best_rows, thread, thread + step)
                cuda.syncthreads()
                step //= 2
            if thread == 0 and best_rows[0] >= 0 and (rows[j] < 0 or is_better(best_values[0], values[j])):
                values[j], rows[j] = best_values[0], best_rows[0]  # slices follow one another: of equals the earlier stays
            cuda.syncthreads()

    return search, settle


def _is_less(a: Any, b: Any) -> Any:
    return a < b or (a != a and b == b)  # noqa: PLR0124  # NaN


def _is_greater(a: Any, b: Any) -> Any:
    return a > b or (a != a and b == b)  # noqa: PLR0124  # NaN
