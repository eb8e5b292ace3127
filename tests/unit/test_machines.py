"""How the GPUs of machines, some of which may be one host, become ranks."""

from contextlib import ExitStack, nullcontext
from types import SimpleNamespace

import pytest

from synknumba import DeviceError, PartitionError
from synknumba._device import DeviceReport
from synknumba._world import placement
from synknumba._world.machines import MachineDevices, shared_out


def job(monkeypatch, mine, *others, ranks_each=None):
    """Places a world on GPUs, of machines that see GPUs with these letters as ids."""
    seen = [mine, *others]
    told = [MachineDevices(4, tuple(range(len(ids))), tuple(ids)) for ids in seen]
    machines = SimpleNamespace(
        hosts=("host",) * len(seen),
        ranks_each=ranks_each,
        devices=lambda: [MachineDevices(4), *told[1:]],
    )
    monkeypatch.setattr(placement, "_check_cuda", lambda: None)
    monkeypatch.setattr(
        placement, "probed", lambda: nullcontext(DeviceReport(len(mine), None, tuple(mine)))
    )
    with ExitStack() as stack:
        return placement._place_on_machines(machines, None, "cuda", None, stack)


@pytest.mark.parametrize(
    ("seen", "gpus", "firsts"),
    [
        (("ab", "cd"), (0, 1, 0, 1), (0, 2, 4)),  # two hosts
        (("ab", "ab"), (0, 1), (0, 1, 2)),  # one
        (("abcd", "abcd"), (0, 1, 2, 3), (0, 2, 4)),
        (("ab", "ba"), (0, 0), (0, 1, 2)),  # CUDA_VISIBLE_DEVICES in another order
        (("ab", "ab", "cd"), (0, 1, 0, 1), (0, 1, 2, 4)),
        (("a", "b"), (0, 0), (0, 1, 2)),  # shared out by the launcher
        (("ab", "b"), (0, 0), (0, 1, 2)),
    ],
)
def test_gpus_of_one_host_are_shared_out(seen, gpus, firsts, monkeypatch):
    assert job(monkeypatch, *seen) == placement.Placement(firsts[-1], "cuda", gpus, firsts)


def test_more_machines_than_gpus(monkeypatch):
    with pytest.raises(
        DeviceError,
        match="has 0 usable GPUs.* 1 GPUs are shared out among it and 1 other machines of the job",
    ):
        job(monkeypatch, "a", "a")


def test_more_ranks_than_gpus(monkeypatch):
    with pytest.raises(
        DeviceError, match="machine 0 .host. has 1 usable GPUs.*2 GPUs are shared out"
    ):
        job(monkeypatch, "ab", "ab", ranks_each=2)
    with pytest.raises(PartitionError, match="2 ranks on machine 1 .b. are more than its 1 GPUs"):
        with_size(monkeypatch, 3)


def with_size(monkeypatch, size):
    machines = SimpleNamespace(
        hosts=("a", "b"),
        ranks_each=None,
        devices=lambda: [MachineDevices(4), MachineDevices(4, (0,), ("y",))],
    )
    monkeypatch.setattr(placement, "_check_cuda", lambda: None)
    monkeypatch.setattr(placement, "probed", lambda: nullcontext(DeviceReport(1, None, ("x",))))
    with ExitStack() as stack:
        return placement._place_on_machines(machines, size, "cuda", None, stack)


def test_each_gpu_has_one_machine():
    told = shared_out(
        [MachineDevices(1, (0, 1, 2), tuple(ids)) for ids in ("abc", "cab", "bca", "xab")]
    )
    owned = [gpu for machine in told for gpu in machine.ids]
    assert sorted(owned) == ["a", "b", "c", "x"]
