"""Kernels that call every function of `cuda.libdevice`, on inputs that reach all its corners.

Runs wherever Numba CUDA runs: `python library.py OUT.npz` records what a GPU answers to every
seventh input, but for functions that approximate on purpose.
"""

import importlib.util
import itertools
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

# Numba's names of libdevice's types, and how many bits a random input has.
DTYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
}
COUNT = 700
STEP = 7
MOST_PER_KERNEL = 12


def declared() -> dict[str, Any]:
    """Name -> Numba signature of every function that `numba.cuda` declares."""
    from numba.cuda import libdevicefuncs

    return {
        name.removeprefix("__nv_"): libdevicefuncs.create_signature(result, args)
        for name, (result, args) in libdevicefuncs.functions.items()
    }


def _floats(dtype: Any, rng: np.random.Generator, place: int) -> np.ndarray:
    info = np.finfo(dtype)
    usual = [
        0.0,
        -0.0,
        1,
        -1,
        2,
        0.5,
        1.5,
        2.5,
        -2.5,
        -0.5,
        0.499999999,
        3,
        10,
        -3.7,
        100.25,
        1e-3,
        1e-20,
        1e20,
    ]
    usual += [
        np.inf,
        -np.inf,
        np.nan,
        info.max,
        info.min,
        info.tiny,
        info.smallest_subnormal,
        1 - info.epsneg,
        1 + info.eps,
    ]
    usual += [2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 2.0**24 + 1]
    usual += [88.8, 709.9, -745.2, -104.0, 65504.0, 65520.0, 6e-8, 3e-8]
    corners = np.array(usual, dtype)
    pairs = np.array(list(itertools.product(corners[:19], repeat=2)), dtype)[:, place % 2]
    width = 32 if dtype is np.float32 else 64
    bits = rng.integers(0, 1 << width, 100, dtype=np.uint64).astype(f"u{width // 8}").view(dtype)
    unit = rng.uniform(-1, 1, 100).astype(dtype)
    tens = rng.normal(0, 10, COUNT).astype(dtype)
    return np.concatenate([corners, pairs, bits, unit, tens])[:COUNT]


def _integers(dtype: Any, rng: np.random.Generator) -> np.ndarray:
    info = np.iinfo(dtype)
    corners = np.array(
        [0, 1, -1, 2, 3, -3, 7, 100, info.max, info.min, info.max - 1, info.min + 1], dtype
    )
    wide = rng.integers(info.min, info.max, COUNT // 2, dtype=dtype, endpoint=True)
    return np.concatenate([corners, wide, rng.integers(-40, 40, COUNT, dtype=dtype)])[:COUNT]


def inputs(kinds: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Arguments of the types, COUNT of each; always the same."""
    rng = np.random.default_rng(1)
    made = []
    for place, kind in enumerate(kinds):
        dtype = DTYPES[kind]
        values = _floats(dtype, rng, place) if kind.startswith("float") else _integers(dtype, rng)
        # Corners of the second argument meet others of the first, beside the pairs.
        made.append(np.roll(values, 17 * place * (place - 1)))
    if kinds[0] == "int32" and len(kinds) == 2 and kinds[1] != "int32":
        made[0] %= 20  # the order of a Bessel function, which takes so many steps
    return tuple(made)


def _groups(names: Collection[str] | None) -> dict[tuple[str, ...], list[tuple[str, Any]]]:
    groups = defaultdict(list)
    for name, signature in declared().items():
        if names is None or name in names:
            groups[tuple(map(str, signature.args))].append((name, signature))
    return groups


def _kernel(number: int, functions: list[tuple[str, Any]], arity: int) -> str:
    args = ", ".join("xyz"[:arity])
    elements = ", ".join(f"{letter}[i]" for letter in "xyz"[:arity])
    outs, lines = [], []
    for name, signature in functions:
        count = getattr(signature.return_type, "count", 1)
        names = [f"{name}_{k}" for k in range(count)]
        outs += names
        targets = ", ".join(f"{out}[i]" for out in names)
        lines.append(f"        {targets} = libdevice.{name}({elements})")
    body = "\n".join(lines)
    params = ", ".join([args, *outs])
    return (
        f"@jit\ndef kernel_{number}({params}):\n    i = cuda.grid(1)\n    if i < x.size:\n{body}\n"
    )


def run(jit: Any, folder: Path, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """What each of the functions, by default all, answers: `NAME_0` and, if it returns a tuple,
    `NAME_1`.
    """
    texts = ["from numba import cuda", "from numba.cuda import libdevice", ""]
    launches = []
    for kinds, members in _groups(names).items():
        for start in range(0, len(members), MOST_PER_KERNEL):
            part = members[start : start + MOST_PER_KERNEL]
            texts.append(_kernel(len(launches), part, len(kinds)))
            launches.append((kinds, part))
    path = folder / "library_kernels.py"
    path.write_text("\n".join(texts))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    module.jit = jit  # type: ignore[attr-defined]
    spec.loader.exec_module(module)
    answers: dict[str, np.ndarray] = {}
    for number, (kinds, part) in enumerate(launches):
        outs = {}
        for name, signature in part:
            results = getattr(signature.return_type, "types", (signature.return_type,))
            outs |= {
                f"{name}_{k}": np.zeros(COUNT, DTYPES[str(kind)]) for k, kind in enumerate(results)
            }
        getattr(module, f"kernel_{number}")[-(-COUNT // 128), 128](*inputs(kinds), *outs.values())
        answers |= outs
    return answers


if __name__ == "__main__":
    from numba import cuda

    with tempfile.TemporaryDirectory() as folder:
        answers = run(cuda.jit, Path(folder))
    exact = {key: answer for key, answer in answers.items() if not key.startswith("fast_")}
    np.savez_compressed(sys.argv[1], **{key: exact[key][::STEP] for key in exact})
