"""Cores that serve GPUs' interrupts, by files as Linux writes them."""

import os
from pathlib import Path

import pytest

from synknumba._host import interrupts

TEXT = """\
           CPU0       CPU1       CPU2       CPU3
  1:          9          0          0          0  IO-APIC   1-edge      i8042
 42:          0          0       5000         20  PCI-MSIX-0000:00:06.0   0-edge      nvidia
 43:          0          3          0          0  PCI-MSIX-0000:00:06.0   1-edge      nvidia
 47:          0          0          0       4000  PCI-MSIX-0000:00:07.0   0-edge      nvidia
NMI:          7          7          7          7   Non-maskable interrupts
ERR:          0
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "interrupts").write_text(TEXT)
    for number, cores in {42: "2", 43: "1", 47: "5-6,8"}.items():
        (tmp_path / "irq" / str(number)).mkdir(parents=True)
        (tmp_path / "irq" / str(number) / "effective_affinity_list").write_text(f"{cores}\n")
    return tmp_path


def test_cores_of_interrupts_that_come_with_work(proc: Path) -> None:
    assert interrupts.interrupted_cores(proc) == {2, 5, 6, 8}


@pytest.mark.parametrize(
    ("allowed", "left"),
    [
        (range(32), {*range(32)} - {2, 5, 6, 8}),
        (range(9, 16), None),  # none of them serves a GPU
        (range(8), None),  # too few would be left
    ],
)
def test_a_rank_leaves_them(
    proc: Path, monkeypatch: pytest.MonkeyPatch, allowed: range, left: set[int] | None
) -> None:
    told: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: told.append(cores))
    interrupts.leave_interrupted_cores(proc)
    assert told == ([] if left is None else [left])


@pytest.mark.parametrize(
    "text", ["", "no header\n 42: many nvidia\n", TEXT.replace("nvidia", "virtio")]
)
def test_other_systems_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("changed"))
    interrupts.leave_interrupted_cores(tmp_path)  # has no file
    (tmp_path / "interrupts").write_text(text)
    interrupts.leave_interrupted_cores(tmp_path)
