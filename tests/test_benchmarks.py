"""Every benchmark runs once, at a tiny size, so that it cannot rot. Times are not looked at."""

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
import textwrap

import pytest

from synknumba._wire import doorbell
from tests.environment import ROOT, environment

BENCHMARKS = ROOT / "benchmarks"

# Script, arguments, names of what must be among the results.
RUNS = [
    (
        "call_overhead.py",
        "--ranks 2 --seconds 0.01",
        {"synknumba", "hand-made loop", "multiprocessing", "numba"},
    ),
    ("call_overhead.py", "--ranks 1 3 --seconds 0.01 --no-peers", {"synknumba"}),
    ("call_profile.py", "--ranks 2", {"cpu"}),
    ("check.py", "--small --no-python", {"tiled product, n = 96", "rotated NMS, 90 boxes"}),
    (
        "collectives.py",
        "--ranks 2 --bytes 1000 100000 --seconds 0.01",
        {"synknumba", "synknumba: host transport alone"},
    ),
    (
        "collectives.py",
        "--ranks 1 3 --bytes 1 --seconds 0.01 --no-peers",
        {"synknumba", "synknumba: host transport alone"},
    ),
    ("convergence.py", "--least 7 --most 11 --runs 2 --seconds 0.01", {"synknumba"}),
    ("expectation.py", "--ranks 1 3 --rows 7 10007 --seconds 0.01", {"cpu"}),
    (
        "expectation.py",
        "--pairs --ranks 1 3 --rows 7 10007 --seconds 0.01",
        {"synknumba", "device memory"},
    ),
    (
        "expcos.py",
        "--rows 7 10007 --seconds 0.01",
        {"synknumba: simt kernel", "numba: njit loop", "numpy"},
    ),
    ("first_launches.py", "--repeats 1 --kernels alphas saxpy", {"alphas", "saxpy"}),
    ("generators.py", "--seconds 0.01", {"synknumba: simt kernel", "numba: njit loop", "numpy"}),
    (
        "headline.py",
        "--quick --gpus 1 3 --seconds 0.01",
        {"synknumba", "FluidX3D", "ParallelStencil, 2-D ice", "Romero et al."},
    ),
    (
        "kernels.py",
        "--tiles 3 --seconds 0.01",
        {"synknumba: simt kernel", "numba: njit loop", "numpy", "copy"},
    ),
    ("machines.py", "--ranks 2 --seconds 0.01 --repeats 1 --bytes 1e6", {"synknumba"}),
    (
        "many_ranks.py",
        "--ranks 1 3 --samples 1000 --rows 7 --elements 10 300000 --table 100 --batch 40 "
        "--columns 5 --seconds 0.01",
        {"synknumba", "numba: prange", "copy"},
    ),
    (
        "minibatch.py",
        "--ranks 3 --rows 100 --columns 5 --batches 1 42 --seconds 0.01",
        {"synknumba", "numpy", "numba"},
    ),
    (
        "montecarlo.py",
        "--ranks 1 3 --samples 7 1e4 --seconds 0.01",
        {"synknumba", "numba", "numpy"},
    ),
    ("nbody.py", "--ranks 1 3 --bodies 100 --seconds 0.01", {"synknumba"}),
    (
        "ports.py",
        "--ranks 1 3 --rows 10007 --seconds 0.01",
        {"synknumba", "numba: njit, all cores", "numpy"},
    ),
    ("respawn.py", "--ranks 1 2 --repeats 1 --bytes 1 1e4", {"cpu"}),
    ("scaling.py", "", {"model"}),
    ("scatter.py", "--ranks 1 3 --gib 1e-8 1e-4 --seconds 0.01 --no-peers", {"synknumba"}),
    ("scatter.py", "--ranks 2 --gib 1e-4 --seconds 0.01", {"synknumba"}),
    (
        "sequences.py",
        "--ranks 2 --sides 7 --seconds 0.01",
        {"synknumba: sequence", "synknumba: single calls"},
    ),
    ("shards.py", "--ranks 1 3 --rows 7 10007 --seconds 0.01", {"synknumba"}),
    ("simt.py", "--kernels saxpy --seconds 0.01", {"saxpy"}),
    ("stream.py", "--ranks 1 3 --gib 1e-4 --slices 5 --compute 0 20 --seconds 0.01", {"synknumba"}),
    ("startup.py", "--ranks 1 2 --repeats 1", {"cpu"}),
    ("training.py", "--ranks 2 --seconds 0.01 --no-peers", {"synknumba", "3.5 copies of as many"}),
    ("weights.py", "--ranks 2 --turns 100 --seconds 0.01", {"synknumba"}),
    (
        "vectorize.py",
        "--ranks 1 3 --rows 7 10007 --seconds 0.01",
        {"synknumba", "numba: vectorize", "numpy"},
    ),
]


# they compile many kernels, and start many peers: a minute and a half where others work beside
@pytest.mark.whole
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("name", "args", "among"), [pytest.param(*run, id=" ".join(run[:2])) for run in RUNS]
)
def test_benchmark(tmp_path, name, args, among):
    file = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *args.split(), "--json", str(file)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(file.read_text())
    assert report["machine"]["usable_cores"] > 0
    assert {"python", "numpy", "numba"} <= set(report["versions"])
    assert among <= {
        result.get("library") or result.get("device") or result.get("kernel")
        for result in report["results"]
    }
    assert "ratio" in done.stdout


NUMBA_PEER = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from _montecarlo import EXACT, check
from _montecarlo_numba import DRAWS, THREADS, kernel_of, sample_of
from numba.cuda.random import create_xoroshiro128p_states

states = create_xoroshiro128p_states(THREADS, seed=1)  # once: it takes longer than the kernels
for work in EXACT:
    for dtype in DRAWS:
        sums = np.zeros(1)
        kernel_of(sample_of(work, dtype))[1, THREADS](states, 400, sums)
        check(work, sums[0] / 400, 400)
print("right")
"""


@pytest.mark.whole
def test_kernel_of_numba_in_the_simulator():
    done = subprocess.run(
        [sys.executable, "-c", NUMBA_PEER, str(BENCHMARKS)],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.stdout == "right\n", done.stderr


def test_every_benchmark_is_run():
    there = {path.name for path in BENCHMARKS.glob("[!_]*.py")}
    assert there, "no benchmarks found"
    assert there == {name for name, _, _ in RUNS} | {"gpu_sequences.py"}  # which needs a GPU


def test_the_profiled_loop_is_the_one_that_serves():
    """`call_profile` times a copy of the compiled loop, which must not become another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        timed_serve = importlib.import_module("call_profile").timed_serve

    def body(function):
        statements = function.body[1:] if ast.get_docstring(function) else function.body
        lines = "\n".join(map(ast.unparse, statements)).replace("doorbell.", "").splitlines()
        lines = [line.strip().replace("number, rank)", "number)") for line in lines]
        return [line for line in lines if not line.startswith("note(")]

    def functions(source):
        tree = ast.parse(textwrap.dedent(source))
        return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    timed = functions(inspect.getsource(timed_serve))
    for served in (doorbell.repeat.py_func, doorbell.serve.py_func):
        (function,) = functions(inspect.getsource(served)).values()
        assert body(timed[function.name]) == body(function)
