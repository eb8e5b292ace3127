"""Runs Numba CUDA kernels on all the GPUs, or all the cores, of a machine, from one serial script."""

from synknumba._arguments import arange as arange
from synknumba._arguments import output as output
from synknumba._arguments import per_rank as per_rank
from synknumba._data import Data as Data
from synknumba._data import data as data
from synknumba._decorators import function as function
from synknumba._decorators import parallel as parallel
from synknumba._errors import ArgumentError as ArgumentError
from synknumba._errors import BatchError as BatchError
from synknumba._errors import CallTimeout as CallTimeout
from synknumba._errors import DataError as DataError
from synknumba._errors import DeviceError as DeviceError
from synknumba._errors import KernelError as KernelError
from synknumba._errors import LaunchError as LaunchError
from synknumba._errors import PartitionError as PartitionError
from synknumba._errors import RankDied as RankDied
from synknumba._errors import RankError as RankError
from synknumba._errors import ReductionError as ReductionError
from synknumba._errors import SharedMemoryError as SharedMemoryError
from synknumba._errors import SynkError as SynkError
from synknumba._errors import WorldError as WorldError
from synknumba._fork import fork as fork
from synknumba._function import Function as Function
from synknumba._function import distribute as distribute
from synknumba._report import PlanReport as PlanReport
from synknumba._types import OFFSET as OFFSET
from synknumba._types import RANK as RANK
from synknumba._types import WORLD_SIZE as WORLD_SIZE
from synknumba._types import Span as Span
from synknumba._world import World as World
from synknumba._world import close as close

__version__ = "0.1.0.dev0"
