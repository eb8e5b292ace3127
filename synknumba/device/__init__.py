"""The devices a rank can run on, made by kind when asked for, so that no driver is imported before."""

from synknumba._types import DeviceKind
from synknumba.device._base import Buffer as Buffer
from synknumba.device._base import Device as Device
from synknumba.device._base import DeviceKernel as DeviceKernel
from synknumba.device._base import Replay as Replay
from synknumba.device._base import SliceSteps as SliceSteps
from synknumba.device._base import Step as Step
from synknumba.device._base import Three as Three
from synknumba.device._base import Workspace as Workspace
from synknumba.device._probe import DeviceReport as DeviceReport
from synknumba.device._probe import cuda_is_initialised as cuda_is_initialised
from synknumba.device._probe import import_problem as import_problem
from synknumba.device._probe import probe as probe
from synknumba.device._probe import probed as probed
from synknumba.device._probe import usable_cores as usable_cores


def open_device(kind: DeviceKind, index: int) -> Device:
    """The device of this process; to be called in a rank.

    Args:
        kind: "cuda" or "cpu".
        index: which GPU; of no meaning on the CPU.
    """
    if kind == "cuda":
        from synknumba.device._cuda import CudaDevice  # noqa: PLC0415  # drivers are imported when asked for

        return CudaDevice(index)
    from synknumba.device._cpu import CpuDevice  # noqa: PLC0415  # drivers are imported when asked for

    return CpuDevice()
