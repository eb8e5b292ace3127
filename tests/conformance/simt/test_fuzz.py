"""A hundred kernels of the fuzzer, and as many as Hypothesis likes of a small grammar."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.simt import fuzz
from tests.conformance.simt.kernel_writer import BLOCK, THREAD, written
from tests.quick import examples, whole

PARTS = [range(10), *whole(*(range(start, start + 10) for start in range(10, 100, 10)))]
COMPILED = (3, 17, 42)
SIMULATED = list(range(0, 60, 4))


@pytest.mark.whole
@pytest.mark.parametrize("seeds", PARTS, ids=lambda seeds: f"from{seeds.start}")
def test_python_mode_agrees_with_the_model(seeds: range) -> None:
    for seed in seeds:
        fuzz.check(seed)


@pytest.mark.whole
@pytest.mark.parametrize("seed", COMPILED)
def test_compiled_code_agrees_with_the_model(seed: int) -> None:
    fuzz.check(seed, compiled=True)


@pytest.mark.whole
def test_model_agrees_with_the_simulator() -> None:
    assert fuzz.compare_with_the_simulator(SIMULATED) >= 5


@pytest.mark.parametrize("seed", [1, *whole(2, 3)])
def test_kernels_do_not_depend_on_the_order_of_threads(seed: int) -> None:
    writer = written(seed)
    kernel = fuzz.load(writer.text(), f"<kernel {seed}>")
    for m in fuzz.STEPS:
        forward, reverse = (
            fuzz.expected(kernel, writer.grid, writer.block, m, order) for order in (1, -1)
        )
        fuzz.agree(reverse, forward)


def test_a_lost_barrier_is_found() -> None:
    """Forward, the threads of the upper half find what those of the lower half have written."""
    with pytest.raises(AssertionError, match="forward, m = 0"):
        fuzz.check_text(
            LOST, (2,), (8,), "<lost>", model_text=LOST.replace("# lost", "cuda.syncthreads()")
        )


LOST = """
from numba import cuda, float64


def kernel(x, y, m, total, out, wholes):
    s = cuda.shared.array(8, float64)
    i = cuda.grid(1)
    s[cuda.threadIdx.x] = x[i]
    # lost
    out[i] = s[7 - cuda.threadIdx.x]
"""


# ---- a small grammar

CONDITIONS = {
    BLOCK: st.sampled_from(
        ["m > 2", "u > 1", "cuda.blockIdx.x == 0", "cuda.syncthreads_or(1 if v > 1.0 else 0)"]
    ),
    THREAD: st.sampled_from(["v > 0.5", "t < 3", "k % 2 == 0"]),
}
PHASES = st.builds(
    "s[(t + {}) % 8] = v\ncuda.syncthreads()\nv = s[(t * {} + u) % 8] * 0.5 + "
    "k\ncuda.syncthreads()".format,
    st.integers(0, 7),
    st.integers(1, 3),
)
UPDATES = st.builds(
    "v = c[t] * 0.25 + c[(t * {} + u) % 8] * "
    "0.5\ncuda.syncthreads()\n{}\ncuda.syncthreads()".format,
    st.integers(1, 3),
    st.sampled_from(
        [
            "c[t] = v",
            "c[t] += v",
            "if t > u:\n    c[t] = v",
            "c[t] = v\nk = (k + t) % 5",
            "s[t] = v\nc[t] -= k",
        ]
    ),
)
STATEMENTS = st.sampled_from(
    ["v = v * 0.5 + x[i]", "k = (k + t) % 5", "out[i] += v", "cuda.atomic.add(total, 0, k)"]
)
UNIFORM = st.sampled_from(["u = (u + m) % 4", "u = cuda.syncthreads_count(k) % 4"])


def indented(*lines: str) -> str:
    return "\n".join("    " + line for text in lines for line in text.splitlines())


def nested(level: int, inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Branches and loops that all threads of the level take together; they may leave the loops."""
    several = st.lists(inner, min_size=1, max_size=3).map("\n".join)
    condition = CONDITIONS[level]
    branch = st.builds(
        lambda test, body, other: f"if {test}:\n{indented(body)}\nelse:\n{indented(other)}",
        condition,
        several,
        several,
    )
    stop = st.builds("if {}:\n    {}".format, condition, st.sampled_from(["break", "continue"]))
    count = {BLOCK: st.sampled_from(["3", "m % 4", "u"]), THREAD: st.sampled_from(["t % 3", "k"])}[
        level
    ]
    loop = st.builds(
        lambda times, body, leave, rest: f"for _ in range({times}):\n{indented(body, leave, rest)}",
        count,
        several,
        stop,
        several,
    )
    return branch | loop


THREADS = st.recursive(STATEMENTS, lambda inner: nested(THREAD, inner), max_leaves=4)
BLOCKS = st.recursive(
    PHASES | UPDATES | UNIFORM | THREADS, lambda inner: nested(BLOCK, inner), max_leaves=8
)
LEAVES = st.sampled_from(
    ["pass", "if i > 11:\n    return", "if v > 1.2 and t > 2:\n    out[i] = -1.0\n    return"]
)
FIRST = """from numba import cuda, float64


def kernel(x, y, m, total, out, wholes):
    s = cuda.shared.array(8, float64)
    c = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    v, k, u = x[i], y[i], m % 3
    s[t] = v
    c[t] = v + 1.0
    cuda.syncthreads()
"""


@pytest.mark.whole
@settings(max_examples=examples(25, quick=6), suppress_health_check=list(HealthCheck))
@given(LEAVES, BLOCKS, LEAVES, BLOCKS)
def test_kernels_of_a_grammar(first: str, one: str, second: str, two: str) -> None:
    text = (
        FIRST + indented(first, one, second, two, "out[i] += v + u + c[t]", "wholes[i] = k") + "\n"
    )
    fuzz.check_text(text, (2,), (8,), f"<kernel {hash(text)}>")
