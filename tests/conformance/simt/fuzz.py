"""Random kernels without races, with barriers in nested control flow: what simt makes of them
against a model of threads.

    python -m tests.conformance.simt.fuzz --count 2000 --seed 1

writes kernels from that seed on, runs the function that simt generates for each in plain Python,
forward and in reverse order of threads, compares with `model.py`, and prints the source of each
kernel that differs. `--njit 20` compiles every twentieth too; `--simulator 20` asks Numba's
simulator about every twentieth, as far as it knows the words.
"""

import argparse
import linecache
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.conformance.simt.kernel_writer import written

STEPS = (0, 3, 6)  # what `m` is in the launches of a kernel
ROOT = Path(__file__).resolve().parents[3]
Size = tuple[int, ...]


def load(text: str, name: str) -> Any:
    """The kernel, with its source where `inspect` looks for that of a notebook cell."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": "fuzzed"}
    exec(compile(text, name, "exec"), scope)
    return scope["kernel"]


def arguments(threads: int, m: int) -> tuple[Any, ...]:
    """Arguments for so many threads in all."""
    source = np.random.default_rng(m)
    x, y = source.random(threads) * 2, source.integers(0, 9, threads)
    return x, y, m, np.zeros(3, np.int64), np.zeros(threads), np.zeros(threads, np.int64)


def results(args: tuple[Any, ...]) -> list[np.ndarray]:
    return list(args[3:])


def expected(kernel: Any, grid: Size, block: Size, m: int, order: int = 1) -> list[np.ndarray]:
    """What the model says."""
    from tests.conformance.simt import model

    args = arguments(int(np.prod(grid + block)), m)
    model.run(kernel, grid, block, args, order=order)
    return results(args)


def check(seed: int, *, compiled: bool = False) -> None:
    """Compares what simt makes of the kernel of a seed with the model."""
    writer = written(seed)
    check_text(writer.text(), writer.grid, writer.block, f"<kernel {seed}>", compiled=compiled)


def check_text(
    text: str, grid: Size, block: Size, name: str, *, compiled: bool = False, model_text: str = ""
) -> None:
    """Compares what simt makes of a kernel with the model, for each number of steps and both orders
    of threads.

    Args:
        text: its source.
        grid: blocks.
        block: threads of a block.
        name: what it is called in tracebacks.
        compiled: whether to compile it, for one order of threads, instead of running it in plain
            Python for both.
        model_text: the source that the model runs, if another.

    Raises:
        AssertionError: they differ; the message holds the source.
    """
    from synknumba import simt
    from tests.conformance.simt import python_mode

    model_kernel = load(model_text or text, f"{name[:-1]} of the model>")
    wanted = {m: expected(model_kernel, grid, block, m) for m in STEPS}
    threads = int(np.prod(grid + block))
    # Without contraction to fused operations, all of them round alike.
    kernel = simt.jit(load(text, name), fastmath=["nsz"], cache=False)
    try:
        if compiled:
            launches = {"compiled": kernel[grid, block]}
        else:
            launches = python_mode.launches(kernel, grid, block, arguments(threads, 0))
        for how, launch in launches.items():
            for m in STEPS:
                args = arguments(threads, m)
                launch(*args)
                agree(results(args), wanted[m], f"{how}, m = {m}")
    except Exception as error:
        raise AssertionError(
            f"{name}, grid {grid}, block "
            f"{block}\n{text}\n{''.join(traceback.format_exception(error))}"
        ) from error


def agree(got: list[np.ndarray], wanted: list[np.ndarray], what: str = "") -> None:
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12, err_msg=what)


# ---- the simulator


def simulate(seeds: list[int]) -> Iterator[tuple[int, int, Any]]:
    """Seed, steps and results (or an error) of the kernels that Numba's simulator can run, from
    a process of its own.
    """
    with tempfile.NamedTemporaryFile() as file:
        env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
        command = [
            sys.executable,
            "-m",
            "tests.conformance.simt.fuzz",
            "--simulated",
            file.name,
            *map(str, seeds),
        ]
        subprocess.run(command, cwd=ROOT, env=env, check=True)
        yield from pickle.loads(Path(file.name).read_bytes())


def _in_the_simulator(out: str, seeds: list[int]) -> None:
    from numba import cuda

    from tests.conformance.simt.simulate import SWITCH_SECONDS

    warnings.simplefilter("ignore")
    sys.setswitchinterval(SWITCH_SECONDS)
    found = []
    for seed in seeds:
        writer = written(seed)
        text = writer.text()
        if not writer.known_to_simulator:
            continue
        for m in STEPS:
            args = arguments(writer.size, m)
            cuda.jit(load(text, f"<kernel {seed}>"))[writer.grid, writer.block](*args)
            found.append((seed, m, results(args)))
    Path(out).write_bytes(pickle.dumps(found))


def compare_with_the_simulator(seeds: list[int]) -> int:
    """Compares the model with the simulator; returns how many kernels both could run.

    The simulator's threads are polled, and on a busy machine it has given one element wrong that
    was right the next time. So it is asked once more about kernels in which it differs.

    Raises:
        AssertionError: they differ twice.
    """
    ran, differ = _compare(seeds)
    if differ:
        _, differ = _compare(sorted(differ))
    for seed, problem in differ.items():
        raise AssertionError(f"the model and the simulator differ in kernel {seed}, {problem}")
    return len(ran)


def _compare(seeds: list[int]) -> tuple[set[int], dict[int, str]]:
    """Returns the kernels that the simulator could run, and where it differs from the model."""
    ran: set[int] = set()
    differ: dict[int, str] = {}
    for seed, m, simulated in simulate(seeds):
        writer = written(seed)
        text = writer.text()
        try:
            agree(expected(load(text, f"<kernel {seed}>"), writer.grid, writer.block, m), simulated)
        except AssertionError as error:
            differ[seed] = f"m = {m}\n{text}\n{error}"
        ran.add(seed)
    return ran, differ


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100, help="how many kernels")
    parser.add_argument(
        "--seed", type=int, default=0, help="the first one's seed; the others follow it"
    )
    parser.add_argument(
        "--njit", type=int, default=0, metavar="N", help="compile every N-th kernel"
    )
    parser.add_argument(
        "--simulator",
        type=int,
        default=0,
        metavar="N",
        help="run every N-th kernel in the simulator",
    )
    parser.add_argument("--show", action="store_true", help="print the kernels and do nothing else")
    parser.add_argument("--simulated", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.simulated:
        _in_the_simulator(given.simulated[0], [int(seed) for seed in given.simulated[1:]])
        return 0
    seeds = range(given.seed, given.seed + given.count)
    differences = 0
    for seed in seeds:
        if given.show:
            print(f"# seed {seed}\n{written(seed).text()}")
            continue
        for compiled in [False, True] if given.njit and seed % given.njit == 0 else [False]:
            try:
                check(seed, compiled=compiled)
            except Exception as error:
                differences += 1
                print(f"==== seed {seed}\n{error}\n", flush=True)
    if given.simulator and not given.show:
        ran = compare_with_the_simulator(list(seeds[:: given.simulator]))
        print(f"model and simulator agree on {ran} kernels")
    print(f"{len(seeds)} kernels, {differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
