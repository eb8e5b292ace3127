"""Kernels of "argmin" and "argmax", for devices whose memory NumPy cannot reach.

    scores (n, m) ── search ──> one candidate per block (B, m) ── settle ──> the best so far (m), and its row

A candidate is a value and its row. The lesser (or greater) value is the better; NaN is better than
any number, as in NumPy; between equal values the lower row is better. So the order of comparisons
does not matter. Row −1 means no candidate.
"""  # noqa: E501

from collections.abc import Callable
from typing import Any

from numba import from_dtype, int64

from synknumba.simt.internals import cuda_module

THREADS = 256  # per block
MOST_BLOCKS = 256  # per column: `settle` has a thread for each candidate
MOST_COLUMNS = 65_535  # blocks along the second axis, by CUDA's limit


def search_grid(rows: int, columns: int) -> tuple[int, int, int]:
    """Returns the grid of `search`; `settle` has the same with one block along the first axis."""
    return max(1, min(-(-rows // THREADS), MOST_BLOCKS)), max(1, min(columns, MOST_COLUMNS)), 1


def locating_kernels(op: str, dtype: Any) -> tuple[Callable[..., None], Callable[..., None]]:
    """Returns `search` and `settle` for values of a dtype, in Numba's CUDA dialect."""
    cuda = cuda_module()  # not when synknumba is imported
    value_type = from_dtype(dtype)
    is_better = cuda.jit(device=True)(_is_less if op == "argmin" else _is_greater)

    @cuda.jit(device=True)
    def meet(values: Any, rows: Any, here: int, there: int) -> None:
        """Stores the better of two candidates at `here`."""
        if rows[there] >= 0:
            value, candidate = values[here], values[there]
            first = not is_better(value, candidate) and rows[there] < rows[here]
            if rows[here] < 0 or is_better(candidate, value) or first:
                values[here], rows[here] = candidate, rows[there]

    def search(scores: Any, first: int, values: Any, rows: Any) -> None:
        """Writes block b's candidate of column j to values[b, j] and rows[b, j]; scores[i] is
        row first + i.
        """
        best_values = cuda.shared.array(256, value_type)
        best_rows = cuda.shared.array(256, int64)
        thread = cuda.threadIdx.x
        for j in range(cuda.blockIdx.y, scores.shape[1], cuda.gridDim.y):
            value, row = scores[0, j], -1
            for i in range(cuda.grid(1), scores.shape[0], cuda.gridsize(1)):
                # rows ascend, so the first of equal values stays
                if row < 0 or is_better(scores[i, j], value):
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
        """Merges the best of the candidates of column j into values[j] and rows[j]."""
        best_values = cuda.shared.array(256, value_type)
        best_rows = cuda.shared.array(256, int64)
        thread = cuda.threadIdx.x
        for j in range(cuda.blockIdx.y, found_values.shape[1], cuda.gridDim.y):
            best_rows[thread] = -1
            if thread < found_values.shape[0]:
                best_values[thread], best_rows[thread] = (
                    found_values[thread, j],
                    found_rows[thread, j],
                )
            cuda.syncthreads()
            step = 128
            while step > 0:
                if thread < step:
                    meet(best_values, best_rows, thread, thread + step)
                cuda.syncthreads()
                step //= 2
            if (
                thread == 0
                and best_rows[0] >= 0
                and (rows[j] < 0 or is_better(best_values[0], values[j]))
            ):
                # slices run in order, so the earlier of equal values stays
                values[j], rows[j] = (
                    best_values[0],
                    best_rows[0],
                )
            cuda.syncthreads()

    return search, settle


def _is_less(a: Any, b: Any) -> Any:
    return a < b or (a != a and b == b)  # noqa: PLR0124  # NaN


def _is_greater(a: Any, b: Any) -> Any:
    return a > b or (a != a and b == b)  # noqa: PLR0124  # NaN
