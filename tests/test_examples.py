"""Every example runs as a script, at a small size. Each checks its own results."""

import re
import subprocess
import sys

import numpy as np
import pytest

from tests.environment import ROOT, environment
from tests.quick import whole

EXAMPLES = ROOT / "examples"

# The sizes of those with pictures.
SMALL = {
    "option_pricing.py": "--paths 20011",
    "ising.py": "--side 16 --lattices 8 --warm-up 60 --measurements 10",
    "histogram.py": "--rows 20011",
    "heat.py": "--cells 40 --steps 200",
    "wave.py": "--cells 32",
    "ising_divided.py": "--side 16 --warm-up 50 --measurements 150 --temperatures 1.8 3",
    "conjugate_gradients.py": "--cells 24",
    "replica_exchange.py": "--levels 4 --ladders 16 --steps 400",
    "helium.py": "--samples 4000 --iterations 30 --final 50000",
    "lca.py": "--batch 7 --features 72 --files 40 --periods 4",
}

# script, its arguments, what it must print. An uneven number of rows on three ranks is the hard case of each.
RUNS = [
    ("energy.py", "--rows 20011 --repeats 2 --device cpu", "all results agree"),
    ("energy.py", "--rows 20011 --repeats 2 --device cpu --ranks 3", r"3 cpu ranks .* x one rank"),
    ("energy.py", "--rows 20011 --repeats 2 --device cpu --ranks 1", "all results agree"),
    ("pi.py", "--points 200003 --device cpu --ranks 3", r"pi = 3\.1"),
    ("saxpy.py", "--rows 10007 --device cpu --ranks 3", "all results equal NumPy's"),
    ("intro.py", "--rows 100 101 2 --device cpu --ranks 3", r"parallel \d\.\d+, in slices"),
    ("variables.py", "--device cpu", r"(?s)\[\[3.0, 3.0\], \[7.0, 7.0\]\].*all results are the manual's"),
    ("variables.py", "--device cpu --ranks 3", "agree with the serial ones"),
    ("variables.py", "--device cpu --ranks 1", "agree with the serial ones"),
    ("option_pricing.py", f"{SMALL['option_pricing.py']} --device cpu --ranks 3", "the prices are right within it"),
    ("ising.py", f"{SMALL['ising.py']} --device cpu --ranks 3", "the results are Onsager's"),
    ("histogram.py", f"{SMALL['histogram.py']} --device cpu --ranks 3", "every count is NumPy's"),
    ("heat.py", f"{SMALL['heat.py']} --device cpu --ranks 3", "agrees with the closed form"),
    ("wave.py", f"{SMALL['wave.py']} --device cpu --ranks 3", "agree with the closed forms"),
    ("ising_divided.py", f"{SMALL['ising_divided.py']} --device cpu --ranks 3", "the results are Onsager's and Yang's"),
    ("conjugate_gradients.py", f"{SMALL['conjugate_gradients.py']} --device cpu --ranks 3", "agree with theory"),
    ("replica_exchange.py", f"{SMALL['replica_exchange.py']} --device cpu --ranks 3", "agree with the integrals"),
    ("helium.py", f"{SMALL['helium.py']} --device cpu --ranks 3", "agree with the closed forms"),
    ("helium.py", f"{SMALL['helium.py']} --device cpu --ranks 1", "agree with the closed forms"),
    ("synkhronos/reductions.py", "--rows 1001 --device cpu --ranks 3", "all results are NumPy's"),
    ("synkhronos/reductions.py", "--rows 1001 --device cpu --ranks 1", "all results are NumPy's"),
    ("synkhronos/data.py", "--device cpu --ranks 3", "the ranks saw every change"),
    ("synkhronos/data.py", "--device cpu --ranks 1", "the ranks saw every change"),
    ("synkhronos/shared_variables.py", "--rows 101 --device cpu --ranks 3", r"(?s)\[33, 34, 34\].*all values are NumPy's"),
    ("synkhronos/shared_variables.py", "--rows 101 --device cpu --ranks 1", "all values are NumPy's"),
    ("synkhronos/batches.py", "--rows 1001 --device cpu --ranks 3", "all results are NumPy's of the same rows"),
    ("synkhronos/batches.py", "--rows 1001 --device cpu --ranks 1", "all results are NumPy's of the same rows"),
    ("synkhronos/local_batches.py", "--rows 101 --device cpu --ranks 3", "all results are NumPy's of the same rows"),
    ("synkhronos/local_batches.py", "--rows 101 --device cpu --ranks 1", "all results are NumPy's of the same rows"),
    ("lca.py", f"{SMALL['lca.py']} --device cpu --ranks 3 --delayed", "have the same bits on 1, 2 and 3 ranks"),
    ("lca.py", f"{SMALL['lca.py']} --device cpu --ranks 1 --threshold firm --order list", "energies fall"),
    (
        "lca.py",
        "--tutorial --batch 2 --features 24 --files 4 --periods 2 --device cpu --ranks 3 --scaling",
        r"ranks: \d\.\d\d x one",
    ),
]


def run_example(name: str, *args: str) -> str:
    """What the example prints; a warning in it is an error, as in any test."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *args],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def param(name, args, printed):
    """A run; what other examples, and the pages, show too is left to the whole suite."""
    alone = name in {"energy.py", "variables.py", "helium.py", "lca.py"} and "--ranks 3" not in args
    further = (
        alone
        or name.startswith("synkhronos/")
        or name
        in {
            "saxpy.py",
            "histogram.py",
            "pi.py",
            "ising.py",
            "ising_divided.py",
            "replica_exchange.py",
            "option_pricing.py",
            "wave.py",
        }
    )
    return pytest.param(name, args, printed, id=f"{name} {args}", marks=pytest.mark.whole if further else ())


@pytest.mark.parametrize(("name", "args", "printed"), [param(*run) for run in RUNS])
def test_example(name, args, printed):
    assert re.search(printed, run_example(name, *args.split()))


def test_every_example_is_run():
    there = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")}
    assert there, "no examples found"
    assert there == {name for name, _, _ in RUNS}


@pytest.mark.whole
def test_helium_is_the_same_on_any_number_of_ranks():
    runs = [
        run_example("helium.py", *SMALL["helium.py"].split(), "--device", "cpu", "--ranks", ranks) for ranks in ("1", "2", "3")
    ]
    results = {run.partition("iteration  energy")[2] for run in runs}  # after the times
    assert len(results) == 1
    assert len(results.pop()) > 500


@pytest.mark.whole
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_energy_reads_a_file(tmp_path, dtype):
    path = tmp_path / "samples.npy"
    np.save(path, np.random.default_rng(0).normal(size=(101, 99)).astype(dtype))
    out = run_example("energy.py", str(path), "--repeats", "1", "--device", "cpu", "--ranks", "2")
    assert f"9,999 rows of {dtype}" in out
    assert "all results agree" in out


@pytest.mark.parametrize(
    "name",
    [
        "ising.py",
        *whole(
            "option_pricing.py",
            "histogram.py",
            "heat.py",
            "wave.py",
            "ising_divided.py",
            "conjugate_gradients.py",
            "replica_exchange.py",
            "helium.py",
            "lca.py",
        ),
    ],
)
def test_an_example_saves_its_picture(name, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    assert f"saved {picture}" in run_example(name, *SMALL[name].split(), "--device", "cpu", "--picture", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("energy.py", "--rows 1000003 --repeats 2 --device cuda"),
        ("pi.py", "--points 1000003 --device cuda"),
        ("saxpy.py", "--rows 100003 --device cuda"),
        ("intro.py", "--rows 100 101 --device cuda"),
        ("variables.py", "--ranks 1 --device cuda"),
        ("option_pricing.py", "--device cuda"),
        ("ising.py", "--device cuda"),
        ("histogram.py", "--device cuda"),
        ("heat.py", "--device cuda"),
        ("wave.py", "--device cuda"),
        ("ising_divided.py", "--device cuda"),
        ("conjugate_gradients.py", "--device cuda"),
        ("replica_exchange.py", "--device cuda"),
        ("helium.py", "--device cuda"),
        ("synkhronos/reductions.py", "--device cuda"),
        ("synkhronos/data.py", "--device cuda"),
        ("synkhronos/shared_variables.py", "--device cuda"),
        ("synkhronos/batches.py", "--device cuda"),
        ("synkhronos/local_batches.py", "--device cuda"),
        ("lca.py", "--device cuda"),
    ],
)
def test_example_on_gpus(name, args):
    run_example(name, *args.split())
