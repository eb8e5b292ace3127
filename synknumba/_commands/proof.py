"""The last check of `synknumba doctor`: a world of ranks, a kernel on each of them, and a
collective.
"""

import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np

import synknumba as synk
from synknumba._commands.findings import Finding, ok, problem, warning

ROWS = 1000  # for each rank
TIMEOUT = 120.0  # seconds of all, with the compilation of the kernel
CALL_TIMEOUT = TIMEOUT / 2  # of a call, whose error says where each rank is


def prove(ranks: int | None, device: str) -> Iterator[Finding]:
    """Forks a world, runs a kernel and an all_reduce on all ranks, and compares the results with
    closed forms.

    Args:
        ranks: number of ranks; None for one for each device.
        device: "auto", "cuda" or "cpu".
    """
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        steps: list[str] = []
        try:
            with _time_limit():
                text, wrong = _run(ranks, device, steps)
        except TimeoutError:
            yield problem(
                f"not done after {TIMEOUT:g} s, which were over during {steps[-1]}",
                "try fewer ranks, as --ranks 1; then see what the machine does (top), and "
                "docs/diagnosis.md",
            )
        except Exception as error:  # noqa: BLE001  # whatever it is, users would meet it too
            yield problem(
                f"{type(error).__name__}: {error}",
                "see the message, and docs/diagnosis.md",
            )
        else:
            if wrong:
                yield problem(wrong, "report this, with the output of `synknumba doctor`")
            else:
                yield ok(f"{text} ({time.perf_counter() - began:.1f} s)")
    for message in dict.fromkeys([str(message.message) for message in warned]):
        yield warning(message, "see the message")


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raises TimeoutError in the block after `TIMEOUT`."""

    def stop(*_: object) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _run(ranks: int | None, device: str, steps: list[str]) -> tuple[str, str]:
    """Returns what has worked, and what is wrong, or ""; names each step as it begins."""
    from synknumba._commands.kernels import count

    steps.append("the start of the ranks")
    with synk.fork(ranks, device=device, timeout=CALL_TIMEOUT) as world:
        size = world.world_size
        number = ROWS * size
        rows = np.arange(number)
        steps.append(f"the kernel on {size} ranks")
        result = count(rows)
        shares = rows.reshape(size, ROWS).sum(axis=1)
        steps.append(f"an all_reduce between {size} ranks")
        ones = synk.variable(np.ones(1000))
        synk.all_reduce(ones, "sum")
        sums = np.array([synk.get_value(ones, rank) for rank in range(size)])
        where, transport = world.device, world.transport
        steps.append(f"the end of {size} ranks")
    has_shares = np.array_equal(np.asarray(result.each), shares)
    if result.total != number * (number - 1) // 2 or not has_shares:
        return (
            "",
            f"a kernel on {size} {where} ranks has added up 0 … {number - 1} to {result.total}",
        )
    if np.any(sums != size):
        return (
            "",
            f"an all_reduce of ones over {transport} has given "
            f"{sums[:, 0].tolist()} on {size} ranks",
        )
    return (
        f"{size} {where} ranks: a kernel on each of them, its sum, and an all_reduce "
        f"over {transport} are right",
        "",
    )
