"""The devices of ranks. Drivers for GPUs are imported by `open_device`, so that the coordinator
loads no GPU library.

Called by ranks, and by `_world`, which asks what there is; imports `_wire`, `simt`, `_host` and
`_ops`. Read `base.py` first, the contract; then `cpu.py`, and of GPUs `cuda.py` and
`cuda_steps.py`.
"""

from synknumba._device.base import TRAITS as TRAITS
from synknumba._device.base import Buffer as Buffer
from synknumba._device.base import Device as Device
from synknumba._device.base import DeviceKernel as DeviceKernel
from synknumba._device.base import DeviceTraits as DeviceTraits
from synknumba._device.base import Gather as Gather
from synknumba._device.base import LineRows as LineRows
from synknumba._device.base import RecordedCall as RecordedCall
from synknumba._device.base import Recorder as Recorder
from synknumba._device.base import Recording as Recording
from synknumba._device.base import ResultRing as ResultRing
from synknumba._device.base import SliceSteps as SliceSteps
from synknumba._device.base import Step as Step
from synknumba._device.base import StrandedError as StrandedError
from synknumba._device.base import Workspace as Workspace
from synknumba._device.gpu_libraries import LIBRARIES as LIBRARIES
from synknumba._device.gpu_libraries import GpuLibraries as GpuLibraries
from synknumba._device.gpu_libraries import cuda_version as cuda_version
from synknumba._device.gpu_libraries import driver_version as driver_version
from synknumba._device.gpu_libraries import find_libraries as find_libraries
from synknumba._device.gpu_probe import DeviceReport as DeviceReport
from synknumba._device.gpu_probe import cuda_is_initialised as cuda_is_initialised
from synknumba._device.gpu_probe import probe as probe
from synknumba._device.gpu_probe import probed as probed
from synknumba._device.gpu_probe import usable_cores as usable_cores
from synknumba._types import CompilerName, DeviceKind
from synknumba.simt.internals import describe


def import_driver(kind: DeviceKind) -> None:
    """Imports the driver in the coordinator, if it loads no GPU library, and the library of vector
    math; each rank would look for it again, in 20 ms.
    """
    if kind == "cpu":
        import synknumba._device.cpu  # noqa: F401

        describe()


def open_device(kind: DeviceKind, index: int, compiler: CompilerName | None = None) -> Device:
    """Opens the device of this process, a rank. Of GPUs: `index` is the GPU's, and `compiler`
    that of `fork()`.
    """
    if kind == "cuda":
        from synknumba._device.cuda import CudaDevice

        return CudaDevice(index, compiler)
    from synknumba._device.cpu import CpuDevice

    return CpuDevice()
