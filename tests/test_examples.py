"""Every example runs as a script, at a small size. Each checks its own results."""

import gzip
import importlib.util
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import synknumba as synk
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
    "lattice_boltzmann.py": "--size 12 --steps 20",
    "ising_divided.py": "--side 16 --warm-up 50 --measurements 150 --temperatures 1.8 3",
    "jacobi.py": "--cells 24",
    "conjugate_gradients.py": "--cells 24",
    "newton_krylov.py": "--cells 24",
    "stokes.py": "--cells 10",
    "runge_kutta.py": "--points 181",
    "replica_exchange.py": "--levels 4 --ladders 16 --steps 400",
    "helium.py": "--samples 4000 --iterations 30 --final 50000",
    "lca.py": "--batch 7 --features 72 --files 40 --periods 4",
    "digits.py": "--epochs 3 --accuracy 0.88",
    "softmax_regression.py": "--decay 0.1 --steps 80",
}

# script, its arguments, what it must print. An uneven number of rows on three ranks is the hard
# case of each.
RUNS = [
    ("energy.py", "--rows 20011 --repeats 2 --device cpu", "all results agree"),
    ("energy.py", "--rows 20011 --repeats 2 --device cpu --ranks 3", r"3 cpu ranks .* x one rank"),
    ("energy.py", "--rows 20011 --repeats 2 --device cpu --ranks 1", "all results agree"),
    ("pi.py", "--points 200003 --device cpu --ranks 3", r"pi = 3\.1"),
    ("saxpy.py", "--rows 10007 --device cpu --ranks 3", "all results equal NumPy's"),
    ("intro.py", "--rows 100 101 2 --device cpu --ranks 3", r"parallel \d\.\d+, in slices"),
    (
        "variables.py",
        "--device cpu",
        r"(?s)\[\[3.0, 3.0\], \[7.0, 7.0\]\].*all results are the manual's",
    ),
    ("variables.py", "--device cpu --ranks 3", "agree with the serial ones"),
    ("variables.py", "--device cpu --ranks 1", "agree with the serial ones"),
    (
        "option_pricing.py",
        f"{SMALL['option_pricing.py']} --device cpu --ranks 3",
        "the prices are right within it",
    ),
    ("greeks.py", "--paths 100003 --device cpu --ranks 3", "the Greeks are right"),
    ("ising.py", f"{SMALL['ising.py']} --device cpu --ranks 3", "the results are Onsager's"),
    ("histogram.py", f"{SMALL['histogram.py']} --device cpu --ranks 3", "every count is NumPy's"),
    ("heat.py", f"{SMALL['heat.py']} --device cpu --ranks 3", "agrees with the closed form"),
    ("wave.py", f"{SMALL['wave.py']} --device cpu --ranks 3", "agree with the closed forms"),
    (
        "lattice_boltzmann.py",
        f"{SMALL['lattice_boltzmann.py']} --device cpu --ranks 3",
        r"vortices are halved, but for \d\.\de-02",
    ),
    (
        "ising_divided.py",
        f"{SMALL['ising_divided.py']} --device cpu --ranks 3",
        "the results are Onsager's and Yang's",
    ),
    (
        "jacobi.py",
        f"{SMALL['jacobi.py']} --device cpu --ranks 3",
        "agree with theory",
    ),
    (
        "conjugate_gradients.py",
        f"{SMALL['conjugate_gradients.py']} --device cpu --ranks 3",
        "agree with theory",
    ),
    (
        "newton_krylov.py",
        f"{SMALL['newton_krylov.py']} --device cpu --ranks 3",
        "agrees with the closed form",
    ),
    (
        "stokes.py",
        f"{SMALL['stokes.py']} --device cpu --ranks 3",
        "is steady and conserves volume",
    ),
    (
        "runge_kutta.py",
        f"{SMALL['runge_kutta.py']} --device cpu --ranks 3",
        "agrees with the closed form",
    ),
    (
        "replica_exchange.py",
        f"{SMALL['replica_exchange.py']} --device cpu --ranks 3",
        "agree with the integrals",
    ),
    ("helium.py", f"{SMALL['helium.py']} --device cpu --ranks 3", "agree with the closed forms"),
    ("helium.py", f"{SMALL['helium.py']} --device cpu --ranks 1", "agree with the closed forms"),
    (
        "digits.py",
        f"{SMALL['digits.py']} --device cpu --ranks 3",
        "first 20 losses from the serial ones: .*e-0[6-9]",
    ),
    (
        "digits.py",
        f"{SMALL['digits.py']} --where ranks --model cnn --device cpu --ranks 3",
        "first 20 losses from the serial",
    ),
    (
        "digits.py",
        f"{SMALL['digits.py']} --where ranks --device cpu --ranks 1",
        "first 20 losses from the serial",
    ),
    ("digits.py", f"{SMALL['digits.py']} --model cnn --where serial", "accuracy 0.9"),
    (
        "digits.py",
        f"{SMALL['digits.py']} --scaling --device cpu --ranks 2",
        r"on 1 rank, \d+ µs on 2: \d+\.\d\d times",
    ),
    (
        "softmax_regression.py",
        f"{SMALL['softmax_regression.py']} --device cpu --ranks 3",
        "that of scikit-learn",
    ),
    (
        "softmax_regression.py",
        f"{SMALL['softmax_regression.py']} --device cpu --ranks 1",
        "that of scikit-learn",
    ),
    ("synkhronos/reductions.py", "--rows 1001 --device cpu --ranks 3", "all results are NumPy's"),
    ("synkhronos/reductions.py", "--rows 1001 --device cpu --ranks 1", "all results are NumPy's"),
    ("synkhronos/data.py", "--device cpu --ranks 3", "the ranks saw every change"),
    ("synkhronos/data.py", "--device cpu --ranks 1", "the ranks saw every change"),
    (
        "synkhronos/shared_variables.py",
        "--rows 101 --device cpu --ranks 3",
        r"(?s)\[33, 34, 34\].*all values are NumPy's",
    ),
    (
        "synkhronos/shared_variables.py",
        "--rows 101 --device cpu --ranks 1",
        "all values are NumPy's",
    ),
    (
        "synkhronos/batches.py",
        "--rows 1001 --device cpu --ranks 3",
        "all results are NumPy's of the same rows",
    ),
    (
        "synkhronos/batches.py",
        "--rows 1001 --device cpu --ranks 1",
        "all results are NumPy's of the same rows",
    ),
    (
        "synkhronos/local_batches.py",
        "--rows 101 --device cpu --ranks 3",
        "all results are NumPy's of the same rows",
    ),
    (
        "synkhronos/local_batches.py",
        "--rows 101 --device cpu --ranks 1",
        "all results are NumPy's of the same rows",
    ),
    (
        "lca.py",
        f"{SMALL['lca.py']} --device cpu --ranks 3 --delayed",
        "have the same bits on 1, 2 and 3 ranks",
    ),
    (
        "lca.py",
        f"{SMALL['lca.py']} --device cpu --ranks 1 --threshold firm --order list",
        "energies fall",
    ),
    (
        "lca.py",
        "--tutorial --batch 2 --features 24 --files 4 --periods 2 --device cpu --ranks 3 --scaling",
        r"ranks: \d\.\d\d x one",
    ),
    (
        "resnet.py",
        "--depth 14 --size 32 --batch 4 --steps 3 --device cpu --ranks 2",
        "images per second",
    ),
]


def module_of(name):
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    one_rank_too = {
        "energy.py",
        "variables.py",
        "helium.py",
        "lca.py",
        "digits.py",
        "softmax_regression.py",
    }
    alone = name in one_rank_too and "--ranks 3" not in args
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
            "greeks.py",
            "wave.py",
            "helium.py",
            "softmax_regression.py",
            "lca.py",
            "jacobi.py",
            "conjugate_gradients.py",
            "newton_krylov.py",
            "stokes.py",
            "runge_kutta.py",
            "variables.py",
            "heat.py",  # which saves its picture in the quick suite
            "lattice_boltzmann.py",  # whose steps are compared with NumPy's there
        }
        or "--tutorial" in args
        or "--model cnn" in args
    )
    marks = [pytest.mark.whole] if further else []
    if name == "resnet.py":
        marks.append(pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"))
    return pytest.param(name, args, printed, id=f"{name} {args}", marks=marks)


@pytest.mark.parametrize(("name", "args", "printed"), [param(*run) for run in RUNS])
def test_example(name, args, printed):
    assert re.search(printed, run_example(name, *args.split()))


@pytest.mark.parametrize(("load", "is_busy"), [(1.4, False), (1.6, True)])
def test_the_demo_tells_of_a_busy_machine(load, is_busy, monkeypatch, capsys):
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "getloadavg", lambda: (load * cores, 0.0, 0.0))
    arguments = "--rows 1000 --repeats 1 --device cpu --ranks 1"
    monkeypatch.setattr(sys, "argv", ["energy.py", *arguments.split()])
    module_of("energy").main()
    assert ("\nthe machine is busy, and times are too long" in capsys.readouterr().out) == is_busy


def test_every_example_is_run():
    """Those in `new` run in unit/test_new.py."""
    paths = [path for path in EXAMPLES.rglob("*.py") if path.parent.name != "new"]
    assert paths, "no examples found"
    names = {path.relative_to(EXAMPLES).as_posix() for path in paths}
    assert names == {name for name, _, _ in RUNS}


# the first of each example's runs
SIZES = {name: args for name, args, _ in reversed(RUNS) if name != "resnet.py"}


@pytest.mark.whole
@pytest.mark.timeout(400)  # a run on each number of ranks
@pytest.mark.parametrize("name", SIZES)
def test_no_example_is_accused_of_depending_on_ranks(name):
    command = [
        sys.executable,
        "-m",
        "synknumba",
        "check",
        "--ranks",
        "1,2,3",
        str(EXAMPLES / name),
        *SIZES[name].split(),
    ]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=390, check=False
    )
    # as many rows a rank as on one, so no call counts
    depends = name == "synkhronos/local_batches.py"
    assert done.returncode == (2 if depends else 0), done.stderr
    assert re.search(r"synknumba check: [\d,]+ calls? agrees? on 1, 2 and 3 ranks\n", done.stderr)


@pytest.mark.whole
def test_helium_is_the_same_on_any_number_of_ranks():
    runs = [
        run_example("helium.py", *SMALL["helium.py"].split(), "--device", "cpu", "--ranks", ranks)
        for ranks in ("1", "2", "3")
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


def epochs_of(printed):
    """The lines of epochs of digits.py: number, mean loss and accuracy."""
    return np.array(
        [line.split()[:3] for line in re.findall(r"^ +\d+ +\d+\.\d+.*$", printed, re.MULTILINE)],
        float,
    )


@pytest.mark.whole
def test_digits_go_on_from_a_checkpoint_on_another_number_of_ranks(tmp_path):
    path = str(tmp_path / "digits.safetensors")
    half = ("--accuracy", "0.7", "--device", "cpu", "--save", path)
    first = epochs_of(run_example("digits.py", "--epochs", "1", "--ranks", "3", *half))
    second = epochs_of(
        run_example("digits.py", "--epochs", "3", "--ranks", "2", "--resume", path, *half)
    )
    whole = epochs_of(
        run_example("digits.py", "--epochs", "3", "--accuracy", "0.7", "--where", "serial")
    )
    np.testing.assert_array_equal(whole[:, 0], [1, 2, 3])
    # printed with 6 decimals
    np.testing.assert_allclose(np.vstack([first, second])[:, :2], whole[:, :2], rtol=1e-4)


@pytest.fixture(scope="module")
def digits():
    """The module of digits.py."""
    return module_of("digits")


def idx(array, code):
    """An array as the bytes of an IDX file."""
    header = bytes([0, 0, code, array.ndim]) + b"".join(
        int(one).to_bytes(4, "big") for one in array.shape
    )
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "code"), [("u1", 8), ("i1", 9), ("i2", 11), ("i4", 12), ("f4", 13), ("f8", 14)]
)
def test_digits_read_idx_files(digits, tmp_path, dtype, code, packed):
    array = np.arange(-30, 30).reshape(3, 4, 5).astype(dtype)
    content = idx(array, code)
    (tmp_path / "file").write_bytes(gzip.compress(content) if packed else content)
    found = digits.read_idx(tmp_path / "file")
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


IMAGES = idx(np.ones((3, 8, 8), np.uint8), 8)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is no IDX file: it begins with the bytes ,"),
        (b"PK\x03\x04 and so on", "no IDX file: it begins with the bytes 50 4b 03 04"),
        (b"\0\0\x07\x01\0\0\0\0", "no IDX file"),
        (IMAGES[:9], "ends in its header: 9 bytes of 16"),
        (IMAGES[:-1], r"has 207 bytes, and its array of shape \(3, 8, 8\) needs 208"),
        (IMAGES + b"x", "has 209 bytes"),
        (gzip.compress(IMAGES, mtime=0)[:20], "damaged gzip file"),
    ],
    ids=range(7),
)
def test_digits_refuse_damaged_files(digits, tmp_path, content, text):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=text):
        digits.read_idx(tmp_path / "file")


def test_digits_refuse_files_that_are_not_mnist(digits, tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match="no file named train-images-idx3-ubyte, .* or train-images.idx3-ubyte.gz",
    ):
        digits.read_mnist(tmp_path, "train")
    for images, labels, text in [
        (
            np.ones((3, 8), np.uint8),
            np.zeros(3, np.uint8),
            r"uint8 \(3, 8\), not uint8 \(n, height, width\)",
        ),
        (
            np.ones((3, 8, 8), np.uint8),
            np.zeros(2, np.uint8),
            r"3 images, and labels of shape \(2,\)",
        ),
        (
            np.ones((3, 8, 8), np.uint8),
            np.full(3, 10, np.uint8),
            "labels from 10 to 10, not from 0 to 9",
        ),
    ]:
        (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images, 8))
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(labels, 8))
        with pytest.raises(ValueError, match=text):
            digits.read_mnist(tmp_path, "train")


@pytest.mark.whole
def test_digits_read_the_files_of_mnist(digits, tmp_path):
    """Files as MNIST's, of scikit-learn's digits."""
    for name, part in zip(("train", "t10k"), digits.digits_of_scikit_learn(), strict=True):
        images = (part.x * 255).round().astype(np.uint8)
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images, 8)))
        (tmp_path / f"{name}-labels.idx1-ubyte").write_bytes(idx(part.labels.astype(np.uint8), 8))
    printed = run_example(
        "digits.py",
        *SMALL["digits.py"].split(),
        "--data",
        str(tmp_path),
        "--device",
        "cpu",
        "--ranks",
        "2",
    )
    assert "1,438 digits of 8 × 8 pixels" in printed


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_gradients_of_digits_are_differences(digits, model):
    """In float64, by central differences along random directions."""
    rng, network = np.random.default_rng(3), digits.NETWORKS[model]
    x, onehot = rng.random((5, 9, 8)), np.eye(10)[rng.integers(0, 10, 5)]
    params = [
        one.astype(float) + 0.01 * rng.normal(size=one.shape) for one in network.start(9, 8, rng)
    ]
    _, slopes = network.gradient(x, onehot, *params)
    for number, slope in enumerate(slopes):
        direction = rng.normal(size=slope.shape)
        sides = []
        for step in (1e-6, -1e-6):
            moved = [one + step * direction if k == number else one for k, one in enumerate(params)]
            sides.append(network.gradient(x, onehot, *moved)[0])
        np.testing.assert_allclose(
            (slope * direction).sum(), (sides[0] - sides[1]) / 2e-6, rtol=1e-5
        )


def flow_by_numpy(f, c, weights, numbers, steps):
    """Populations after time steps of the lattice Boltzmann method, in float64.

    Args:
        f: float64, shape (19, planes, n, n), without the weights.
        c: their velocities, shape (19, 3).
        weights: shape (19,).
        numbers: viscosity, radius of the sphere, speed at x = 0.
        steps: how many.
    """
    viscosity, radius, speed = numbers
    opposite = [(c == -velocity).all(1).argmax() for velocity in c]
    x, y, z = np.indices(f.shape[1:])
    n = f.shape[2]
    solid = (x - n) ** 2 + (y - n / 2) ** 2 + (z - n / 2) ** 2 < radius**2
    for _ in range(steps):
        f = np.stack([np.roll(*pair, (0, 1, 2)) for pair in zip(f, c, strict=True)])
        excess = f.sum(0)
        u = np.tensordot(c.T, f, 1) / (1 + excess)
        if speed:
            excess[0], u[:, 0] = 0, np.array([speed, 0, 0])[:, None, None]
        along = np.tensordot(c, u, 1)
        equal = excess + (1 + excess) * (3 * along + 4.5 * along**2 - 1.5 * (u * u).sum(0))
        equal *= weights[:, None, None, None]
        after = f + (equal - f) / (3 * viscosity + 0.5)
        if speed:
            after[:, 0] = equal[:, 0]
        f = np.where(solid, f[opposite], after)
    return f


WORLDS = pytest.mark.parametrize(
    ("device", "ranks"),
    [
        ("cpu", 3),
        pytest.param("cuda", 1, marks=pytest.mark.gpu),
        pytest.param("cuda", 2, marks=pytest.mark.multi_gpu),
    ],
)


@WORLDS
@pytest.mark.parametrize("numbers", [(0.03, 2.4, 0.07), (0.2, 0.0, 0.0)])
def test_flow_of_lattice_boltzmann_is_that_of_numpy(device, ranks, numbers):
    """A sphere and fluid that enters, or periodic flow without it."""
    example, rng = module_of("lattice_boltzmann"), np.random.default_rng(0)
    with synk.fork(ranks, device=device):
        arrays = example.place(0.1 * rng.random((18, 6, 2)))
        start = populations_of(*arrays[:2])
        example.step(*arrays, *numbers, times=7)
        found = populations_of(*arrays[:2])
        u = example.velocity(*arrays[:2])
    want = flow_by_numpy(start.astype(float), example.C, example.W.astype(float), numbers, 7)
    assert abs(want - start).max() > 1e-3
    np.testing.assert_allclose(found, want, atol=5e-8)
    middle = want[..., 3]
    flow = np.tensordot(example.C[:, :2].T, middle, 1) / (1 + middle.sum(0))
    np.testing.assert_allclose(np.moveaxis(u, -1, 0), flow, atol=1e-7)


@WORLDS
def test_conjugate_gradients_end_in_the_iteration_in_which_those_of_scipy_end(device, ranks):
    sparse = pytest.importorskip("scipy.sparse")
    linalg = pytest.importorskip("scipy.sparse.linalg")
    example, cells = module_of("conjugate_gradients"), 40
    second = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(cells - 1, cells - 1))
    one, iterations = sparse.eye_array(cells - 1), []
    matrix, b = sparse.kron(second, one) + sparse.kron(one, second), example.problem(cells)[1]
    want, _ = linalg.cg(matrix, b[1:-1, 1:-1].ravel(), rtol=1e-8, callback=iterations.append)
    with synk.fork(ranks, device=device):
        found, norms, _ = example.solve(cells, 1, 1e-8)
    assert len(norms) == len(iterations) > 40
    np.testing.assert_allclose(found[1:-1, 1:-1].ravel(), want, atol=1e-12)


@WORLDS
def test_newton_and_krylov_find_the_solution_of_scipy(device, ranks):
    optimize = pytest.importorskip("scipy.optimize")
    example, cells = module_of("newton_krylov"), 12
    u = example.solution(cells)

    def residual(inner):
        u[1:-1, 1:-1] = inner
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        return 8 * example.BETA / cells**2 * np.exp(inner) + around - 4 * inner

    want = optimize.newton_krylov(residual, np.zeros((cells - 1, cells - 1)), f_tol=1e-12)
    with synk.fork(ranks, device=device):
        found, _ = example.solve(cells, 1e-24)
    np.testing.assert_allclose(found[1:-1, 1:-1], want, atol=1e-11)


def stokes_by_numpy(mu, b, fields):
    """∇·v in all cells, and the forces on all faces that are no walls."""
    p, *v = fields
    units = np.eye(3, dtype=int)

    def difference(f, axis, ahead=0):
        """Of a cell and the one before it along an axis."""
        return np.roll(f - np.roll(f, 1, axis), -ahead, axis)

    div = sum(difference(v[axis], axis, 1) for axis in range(3)) * (mu > 0)
    forces = []
    for axis in range(3):
        force = difference(2 * mu * (difference(v[axis], axis, 1) - div / 3) - p, axis)
        for other in {0, 1, 2} - {axis}:
            around = [
                np.roll(mu, one * units[axis] + two * units[other], (0, 1, 2))
                for one in (0, 1)
                for two in (0, 1)
            ]
            edges = np.mean(around, 0) * (np.min(around, 0) > 0)
            shear = edges * (difference(v[axis], other) + difference(v[other], axis))
            force += difference(shear, other, 1)
        if axis == 2:
            force += (b + np.roll(b, 1, 2)) / 2
        forces.append(force * (mu * np.roll(mu, 1, axis) > 0))
    return np.array([div, *forces])


@WORLDS
def test_a_ball_rises_as_a_direct_solver_of_stokes_equations_has_it(device, ranks):
    example, n = module_of("stokes"), 5
    mu, b = example.ball(n)
    mu[2, 3, 2] = 0.4  # without symmetry
    b[3, 1, 4] = 0.3
    faces = [mu * np.roll(mu, 1, axis) > 0 for axis in range(3)]
    inside = np.array([mu > 0, *faces])
    rest = stokes_by_numpy(mu, b, np.zeros(inside.shape))[inside]
    columns = []
    for place in np.flatnonzero(inside):
        fields = np.zeros(inside.shape)
        fields.flat[place] = 1
        columns.append(stokes_by_numpy(mu, b, fields)[inside] - rest)
    want = np.zeros(inside.shape)
    want[inside] = np.linalg.lstsq(np.array(columns).T, -rest)[0]
    with synk.fork(ranks, device=device):
        result, _ = example.solve(mu, b, 1e-12)
    pressure = result[0][mu > 0]
    np.testing.assert_allclose(pressure - pressure.mean(), want[0][mu > 0], atol=1e-8)
    np.testing.assert_allclose(result[1:], want[1:], atol=1e-8)
    assert abs(want[3]).max() > 0.1


@WORLDS
def test_steps_of_runge_and_kutta_are_those_of_scipy(device, ranks):
    """Also those that are refused, as the number of evaluations shows."""
    integrate = pytest.importorskip("scipy.integrate")
    example, points, tolerance = module_of("runge_kutta"), 301, 1e-5
    inverse = ((points - 1) / example.LENGTH) ** 2

    def slope(t, u):
        inner = inverse * (u[:-2] - 2 * u[1:-1] + u[2:]) + u[1:-1] * (1 - u[1:-1])
        return np.pad(inner, 1)

    tolerances = {"rtol": tolerance, "atol": tolerance}
    start = example.front(points, 0)
    want = integrate.solve_ivp(slope, (0, 9), start, "RK23", first_step=1e-3, **tolerances)
    with synk.fork(ranks, device=device):
        found, left = example.solve(points, 9.0, tolerance)
    assert 1 + 3 * len(left) == want.nfev
    assert len(left) > len(np.unique(left)) == len(want.t) - 1
    # near the limit of stability, rounding of the error's norm moves later steps
    np.testing.assert_allclose(9 - np.unique(left)[::-1], want.t[1:], atol=1e-4)
    np.testing.assert_allclose(found, want.y[:, -1], atol=1e-6)


def populations_of(f, moving):
    """Those of an array that stay in their plane, and those that move; shape (19, planes, n, n)."""
    still, moving = (synk.gather(part, nd_up=0) for part in (f, moving))
    return np.moveaxis(np.concatenate([still, moving[::2], moving[1::2]], 1), 1, 0)


@pytest.mark.parametrize(
    "name",
    [
        "heat.py",
        *whole(
            "option_pricing.py",
            "ising.py",
            "histogram.py",
            "wave.py",
            "lattice_boltzmann.py",
            "ising_divided.py",
            "jacobi.py",
            "conjugate_gradients.py",
            "newton_krylov.py",
            "stokes.py",
            "runge_kutta.py",
            "replica_exchange.py",
            "helium.py",
            "lca.py",
            "digits.py",
            "softmax_regression.py",
        ),
    ],
)
def test_an_example_saves_its_picture(name, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    assert f"saved {picture}" in run_example(
        name, *SMALL[name].split(), "--device", "cpu", "--picture", str(picture)
    )
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
        ("greeks.py", "--device cuda"),
        ("ising.py", "--device cuda"),
        ("histogram.py", "--device cuda"),
        ("heat.py", "--device cuda"),
        ("wave.py", "--device cuda"),
        ("lattice_boltzmann.py", "--size 64 --device cuda"),
        ("ising_divided.py", "--device cuda"),
        ("jacobi.py", "--device cuda"),
        ("conjugate_gradients.py", "--device cuda"),
        ("newton_krylov.py", "--device cuda"),
        ("stokes.py", "--device cuda"),
        ("runge_kutta.py", "--device cuda"),
        ("replica_exchange.py", "--device cuda"),
        ("helium.py", "--device cuda"),
        ("digits.py", "--device cuda"),
        ("digits.py", "--model cnn --where ranks --device cuda"),
        ("softmax_regression.py", "--device cuda"),
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
