"""Runs Numba CUDA kernels on all the GPUs, or all the cores, of a machine, from one serial
script.

Calls:
    fork, World, close                     the ranks, one process per GPU or core
    rank, world_size                       this rank, in functions; the number of ranks
    parallel, output                       decorator of kernels; what they return
    function, Function                     decorator of functions of arrays; what it returns
    vectorize, Vectorized                  decorator of functions of numbers, for each element
    expectation, Expectation               decorator of functions of one row: their mean
    Estimate, Measurement                  means with errors, and what is computed from them
    tolerance                              takes rows until the error is small enough
    Future, PlanReport, Extremum           results of f.submit(), f.plan() and argmin
    arange, Span                           indices as an argument; a rank's part of them
    per_rank                               argument with a value for each rank
    RANK, WORLD_SIZE, OFFSET, ROWS, OWN    arguments that each rank fills in
    matmul                                 product of matrices in recorded functions
    distribute                             sends functions to the ranks before their first call
Arrays:
    data, Data                             array in shared memory, which ranks read in place
    columns                                columns of a DataFrame or Arrow table
Variables and collectives:
    variable, vector, Variable             arrays that stay on the ranks; several as one vector
    broadcast, all_gather                  copy arrays, or all rows, to every rank
    scatter, exchange                      divide rows among the ranks; renew halos, or add them
    all_to_all                             send rows of each rank to each
    reduce, all_reduce, reduce_scatter     combine the arrays of all ranks
    gather, snapshot                       copy the arrays of all ranks to the script
    get_value, set_value                   read and write the arrays of one rank
    get_lengths, get_shapes                rows and shapes on each rank
    swap                                   exchange the memory of two variables
Loops:
    sequence, Sequence                     decorator of several calls, which the ranks repeat
    STEP, carry, static                    the iteration; a number that changes; one that does not
Training:
    train                                  module: training steps from a gradient and an optimiser
    optim                                  module: optimisers, learning rates
    batches, Batches                       rows of minibatches, epoch by epoch
    save, load                             checkpoints of variables and values
    stop_on, stopping                      ends loops when a signal asks for it
Tools:
    random                                 module: random numbers by seed, row and draw
    kernels                                module, to be imported: ready-made kernels
    simt                                   module: compiles, checks and debugs kernels on cores
    trace, Trace, Statistics               where time and memory go
    plot                                   module: pictures by matplotlib
    pytest                                 module: runs tests on several numbers of ranks
    options                                defaults, as of progress bars
Errors:
    SynkError                              base of all
    ArgumentError, DataError, BatchError   arguments, arrays or row selections that do not fit
    PartitionError, ReductionError         rows that cannot be divided, results not combined
    KernelError, LaunchError, RecordError  kernels, grids and functions that cannot run
    RankError, RankDied, CallTimeout       a rank raised, ended or took too long
    WorldError, DeviceError                no world, or it is busy; no such GPU
    SharedMemoryError, VariableLost        no memory; values that ended with their ranks
    NonFiniteError                         a training step with a NaN or an infinity

Each has its own help, as in `help(synk.fork)`.
"""

import typing as _typing
import warnings as _warnings

from synknumba import optim as optim
from synknumba import plot as plot
from synknumba import random as random
from synknumba import train as train
from synknumba._api import expectation as expectation
from synknumba._api import function as function
from synknumba._api import parallel as parallel
from synknumba._api import vectorize as vectorize
from synknumba._call.arguments import arange as arange
from synknumba._call.arguments import output as output
from synknumba._call.arguments import per_rank as per_rank
from synknumba._call.distribute import distribute as distribute
from synknumba._call.function import Function as Function
from synknumba._call.future import Future as Future
from synknumba._call.report import PlanReport as PlanReport
from synknumba._device.matmul import matmul as matmul
from synknumba._errors import ArgumentError as ArgumentError
from synknumba._errors import BatchError as BatchError
from synknumba._errors import CallTimeout as CallTimeout
from synknumba._errors import DataError as DataError
from synknumba._errors import DeviceError as DeviceError
from synknumba._errors import KernelError as KernelError
from synknumba._errors import LaunchError as LaunchError
from synknumba._errors import NonFiniteError as NonFiniteError
from synknumba._errors import PartitionError as PartitionError
from synknumba._errors import RankDied as RankDied
from synknumba._errors import RankError as RankError
from synknumba._errors import RecordError as RecordError
from synknumba._errors import ReductionError as ReductionError
from synknumba._errors import SharedMemoryError as SharedMemoryError
from synknumba._errors import SynkError as SynkError
from synknumba._errors import VariableLost as VariableLost
from synknumba._errors import WorldError as WorldError
from synknumba._host.data import Data as Data
from synknumba._host.data import data as data
from synknumba._host.foreign import columns as columns
from synknumba._host.stopping import stop_on as stop_on
from synknumba._host.stopping import stopping as stopping
from synknumba._learning.batches import Batches as Batches
from synknumba._learning.batches import batches as batches
from synknumba._learning.checkpoint import load as load
from synknumba._learning.checkpoint import save as save
from synknumba._ops.measurement import Measurement as Measurement
from synknumba._progress import options as options
from synknumba._rowwise.estimate import Estimate as Estimate
from synknumba._rowwise.expectation import Expectation as Expectation
from synknumba._rowwise.map import Vectorized as Vectorized
from synknumba._rowwise.stopping import tolerance as tolerance
from synknumba._sequence.marks import carry as carry
from synknumba._sequence.marks import static as static
from synknumba._sequence.sequence import Sequence as Sequence
from synknumba._sequence.sequence import sequence as sequence
from synknumba._timeline.trace import Trace as Trace
from synknumba._timeline.trace import trace as trace
from synknumba._tracing import STEP as STEP
from synknumba._types import OFFSET as OFFSET
from synknumba._types import OWN as OWN
from synknumba._types import RANK as RANK
from synknumba._types import ROWS as ROWS
from synknumba._types import WORLD_SIZE as WORLD_SIZE
from synknumba._types import Extremum as Extremum
from synknumba._types import Span as Span
from synknumba._variables.collectives import all_gather as all_gather
from synknumba._variables.collectives import all_reduce as all_reduce
from synknumba._variables.collectives import all_to_all as all_to_all
from synknumba._variables.collectives import broadcast as broadcast
from synknumba._variables.collectives import exchange as exchange
from synknumba._variables.collectives import gather as gather
from synknumba._variables.collectives import get_lengths as get_lengths
from synknumba._variables.collectives import get_shapes as get_shapes
from synknumba._variables.collectives import get_value as get_value
from synknumba._variables.collectives import reduce as reduce
from synknumba._variables.collectives import reduce_scatter as reduce_scatter
from synknumba._variables.collectives import scatter as scatter
from synknumba._variables.collectives import set_value as set_value
from synknumba._variables.collectives import snapshot as snapshot
from synknumba._variables.collectives import swap as swap
from synknumba._variables.create import variable as variable
from synknumba._variables.create import vector as vector
from synknumba._variables.variable import Variable as Variable
from synknumba._wire.statistics import Statistics as Statistics
from synknumba._world.fork import fork as fork
from synknumba._world.world import World as World
from synknumba._world.world import close as close
from synknumba._world.world import rank as rank
from synknumba._world.world import world_size as world_size

__version__ = "0.1.0"  # of the release too: pyproject.toml reads it here

if not _typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Older names, which go with version 0.3; type checkers do not know them."""
        if name != "flatten":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _warnings.warn("synk.flatten is called synk.vector now", DeprecationWarning, stacklevel=2)
        return vector
