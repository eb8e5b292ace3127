"""Notes on loops that draw random numbers: where they are, and that LLVM follows them."""

import numpy as np
import pytest
from llvmlite import binding as llvm
from numba import cuda, typeof

import synknumba as synk
from synknumba import simt
from synknumba.simt._machine.codegen import compile_launch, note_loops, with_interleaving

FEATURES = "+avx2,+avx512f"

# A loop in a loop; the inner one has a note of its own already, and is not to get another.
TEXT = """
define i64 @f(i64 %n, i64 %factor) {
entry:
  br label %outer
outer:
  %i = phi i64 [ 0, %entry ], [ %next, %"end of it" ]
  br label %inner
inner:
  %j = phi i64 [ 0, %outer ], [ %more, %inner ]
  %more = add i64 %j, 1
  %go = icmp ult i64 %more, %n
  br i1 %go, label %inner, label %"end of it", !llvm.loop !0
"end of it":
  %next = add i64 %i, 1
  %on = icmp ult i64 %next, %n
  br i1 %on, label %outer, label %out
out:
  %product = mul i64 %i, FACTOR
  ret i64 %product
}

define void @g() {
outer:
  ret void
}

!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.unroll.disable"}
"""
PHILOX = TEXT.replace("FACTOR", str(0xD2511F53))


def test_branches_that_go_back_are_noted():
    noted = note_loops(PHILOX, 4)
    llvm.parse_assembly(noted).verify()
    changed = {
        new for old, new in zip(PHILOX.splitlines(), noted.splitlines(), strict=False) if old != new
    }
    assert changed == {"  br i1 %on, label %outer, label %out, !llvm.loop !3"}
    assert noted.splitlines()[-2:] == [
        '!2 = !{!"llvm.loop.interleave.count", i32 4}',
        "!3 = distinct !{!3, !2}",
    ]


@pytest.mark.parametrize(("features", "vectors"), [(FEATURES, 4), ("+avx2", 2), ("", 2)])
def test_as_many_vectors_as_there_are_registers_for(features, vectors):
    module = llvm.parse_assembly(PHILOX)
    module.name = "named"
    noted = with_interleaving(module, features)
    assert noted.name == "named"
    assert f'!"llvm.loop.interleave.count", i32 {vectors}' in str(noted)


def test_other_modules_are_left_alone():
    module = llvm.parse_assembly(TEXT.replace("FACTOR", str(0xD2511F54)))
    assert with_interleaving(module, FEATURES) is module


def squares(rows, seed, out):
    start, stop = rows.start, rows.stop
    acc = 0.0
    for i in range(start + cuda.grid(1), stop, cuda.gridsize(1)):
        x = synk.random.uniform(seed, i, 0)
        acc += x * x
    out[cuda.grid(1)] = acc


@pytest.mark.parametrize("rows", [1, 7, 255, 256, 1000, 100_003])
@pytest.mark.parametrize("block", [1, 7, 32, 256])
def test_sums_are_right(rows, block):
    out = np.zeros(2 * block)
    simt.jit(squares)[2, block](synk._types.Span(0, rows), 5, out)
    x = synk.random.uniform(5, np.arange(rows), 0)
    expected = np.zeros(2 * block)
    np.add.at(expected, np.arange(rows) % (2 * block), x * x)
    np.testing.assert_allclose(out, expected, rtol=1e-13)


def multiplications(kernel, *args):
    """Of vectors, in the machine code for a block of 256."""
    kinds = tuple(typeof(arg) for arg in args)
    program = kernel._entries.program
    launch = program.compile(dict(zip(program.params, kinds, strict=True)), (256, 1, 1))
    compiled = compile_launch(launch, (*[typeof(0)] * 7, *kinds), "")
    return compiled.result.library.get_asm_str().count("pmuludq")


def test_several_vectors_stand_side_by_side(monkeypatch):
    args = (synk._types.Span(0, 10), 5, np.zeros(512))
    several = multiplications(simt.jit(squares, cache=False), *args)
    monkeypatch.setattr(
        "synknumba.simt._machine.codegen.with_interleaving", lambda module, features: module
    )
    one = multiplications(simt.jit(squares, cache=False), *args)
    if not one:
        pytest.skip("this processor multiplies in another way")
    assert several > one
