"""What a call, an all_reduce and a minibatch would cost on 1 to 1,000 machines of 8 GPUs: formulas,
and a simulation.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --check benchmarks/results/cores2-machines-many.json

Nothing is measured here. What is assumed of networks, and what was measured of one machine, are the
constants below. What is simulated is the tree of `_machines`: orders down a binomial tree, answers
straight to the first machine, which reads them one by one. --check compares simulated calls with
those that machines.py has measured. Its machines share the cores of one host, so a call takes at
least the processor time of all machines, divided by the cores.

"ratio": the simulated call, to one on a single machine.
"""

import heapq
import json
import math
import random
import statistics
from dataclasses import dataclass
from pathlib import Path

from _common import arguments, print_table, save

GPUS = 8  # of a machine
LOCAL = 12e-6  # s: a round of the ranks of one machine, on GPUs (call_overhead.py, H200)
HOP = 2e-6  # s: until the first relay has seen the doorbell, and from its arrival on (machines.py)
ORDER = 6e-6  # s: what another relay takes to read an order, ring, and answer (machines.py)
ANSWER = 3e-6  # s: what the first relay takes to read one answer (machines.py)
COMBINE = 3e-9  # s: what the coordinator takes to combine one rank's number
NVLINK, HOST_TO_GPU = 370e9, 50e9  # bytes/s: an all_reduce inside a machine; one GPU's bus
TAKE = 8e9  # bytes/s: a relay gathers rows that a list selects
PAGE_LOCKED = 300e9  # bytes/s: 8 GPUs fetch rows from page-locked memory of their machine

SIZES = (1, 2, 4, 8, 16, 64, 256, 1000)
REDUCED = 100e6  # bytes of the all_reduce
ROWS, WIDTH = 65_536, 784 * 4  # of the minibatch; bytes of a row


@dataclass(frozen=True, slots=True)
class Network:
    """A network: assumed, from the data sheets and from measurements that others have published."""

    name: str
    latency: float  # s, of a small message, with MPI
    machine: float  # bytes/s that a machine sends, over all its adapters
    adapter: float  # bytes/s of one
    send: float  # s of processor time for a message


NETWORKS = (
    Network("InfiniBand NDR, an adapter for each GPU", 1.5e-6, 8 * 48e9, 48e9, 0.5e-6),
    Network("InfiniBand NDR, one adapter", 1.5e-6, 48e9, 48e9, 0.5e-6),
    Network("Ethernet 100 Gbit/s, TCP", 15e-6, 11e9, 11e9, 4e-6),
    Network("Ethernet 10 Gbit/s, TCP", 30e-6, 1.1e9, 1.1e9, 4e-6),
)


def depth(machines: int) -> int:
    """Levels of a binomial tree below its root."""
    return math.ceil(math.log2(machines)) if machines > 1 else 0


def call(net: Network, machines: int, local: float = LOCAL) -> float:
    """Seconds of a call without rows: the longest path down, or the answers that the first relay
    reads one by one.
    """
    if machines == 1:
        return local
    levels = depth(machines)
    path = levels * (net.send + net.latency + ORDER) + local + net.latency + ANSWER
    read = levels * net.send + net.latency + ORDER + local + net.latency + (machines - 1) * ANSWER
    moved = 8 * GPUS * machines / net.adapter
    return 2 * HOP + max(path, read) + moved + COMBINE * GPUS * machines


def children(machine: int, machines: int) -> list[int]:
    """The machines that get their orders from one, in the order of sending
    (`_machines/machine_comm.py`).
    """
    low = machine & -machine or 1 << 62
    steps = [1 << k for k in range(machines.bit_length())]
    return [machine + step for step in reversed(steps) if step < low and machine + step < machines]


def simulate(
    net: Network, machines: int, local: float = LOCAL, jitter: float = 0.2, trials: int = 41
) -> float:
    """The median of simulated calls, in which each step takes longer by an exponential share of
    it.
    """
    rng, found = random.Random(0), []
    for _ in range(trials):

        def some(seconds: float) -> float:
            return seconds * (1 + jitter * rng.expovariate(1))

        arrived = [some(HOP), *([0.0] * (machines - 1))]
        answers: list[float] = []
        own = arrived[0] + some(local)
        for machine in range(machines):
            now = arrived[machine]
            for child in children(machine, machines):
                now += some(net.send)
                arrived[child] = now + some(net.latency)
            if machine:
                heapq.heappush(answers, now + some(ORDER) + some(local) + some(net.latency))
        now = arrived[0] + some(net.send) * len(children(0, machines))
        while answers:
            now = max(now, heapq.heappop(answers)) + some(ANSWER)
        moved = 8 * GPUS * machines / net.adapter if machines > 1 else 0.0
        found.append(
            max(now, own) + (some(HOP) if machines > 1 else 0.0) + moved + COMBINE * GPUS * machines
        )
    return statistics.median(found) if machines > 1 else local


def all_reduce(net: Network, machines: int, nbytes: float = REDUCED) -> float:
    """Seconds of an all_reduce by NCCL: inside machines over NVLink, between them by the faster
    of a ring and a double tree.
    """
    inside = 2 * nbytes * (GPUS - 1) / GPUS / NVLINK
    if machines == 1:
        return LOCAL + inside
    ring = 2 * (machines - 1) / machines * nbytes / net.machine + 4 * (machines - 1) * net.latency
    tree = 2 * nbytes / (0.9 * net.machine) + 8 * depth(machines) * net.latency
    return 20e-6 + inside + min(ring, tree)


def minibatch(net: Network, machines: int, *, frozen: bool) -> float:
    """Seconds of a step on random rows: gathered and sent by the script's machine, or, frozen,
    fetched from mirrors.
    """
    nbytes = ROWS * WIDTH
    if frozen or machines == 1:
        return (
            nbytes / machines / PAGE_LOCKED
            + 8 * ROWS * (machines - 1) / machines / net.machine
            + call(net, machines)
        )
    sent = nbytes * (machines - 1) / machines / min(TAKE, net.machine)
    return sent + nbytes / machines / (GPUS * HOST_TO_GPU) + call(net, machines)


def check(path: Path) -> None:
    """Compares simulated calls with measured ones."""
    report = json.loads(path.read_text())
    measured = {one["machines"]: one for one in report["results"] if one["what"] == "empty call"}
    here = Network("one host", 0.6e-6, 10e9, 10e9, 0.6e-6)
    rows = []
    for machines, one in sorted(measured.items()):
        path_seconds = simulate(here, machines, local=4e-6)
        # processor time of all processes
        work = machines * (4e-6 + ORDER + ANSWER + 2 * here.send) + 4 * HOP
        told, found = (
            max(path_seconds, work / report["machine"]["usable_cores"]) * 1e6,
            one["several"],
        )
        rows.append(
            (
                str(machines),
                f"{path_seconds * 1e6:.1f}",
                f"{told:.1f}",
                f"{found:.1f}",
                f"{found / told:.2f}",
            )
        )
    print_table(("machines", "path µs", "with cores", "measured", "ratio"), rows)


@dataclass(frozen=True, slots=True)
class Result:
    """One row of a table, in seconds."""

    library: str
    network: str
    machines: int
    call: float
    simulated: float
    all_reduce: float
    rows_sent: float
    rows_there: float
    ratio: float


def result(net: Network, machines: int) -> Result:
    """The row of a network and a number of machines."""
    simulated = simulate(net, machines)
    sent, there = (minibatch(net, machines, frozen=frozen) for frozen in (False, True))
    reduced = all_reduce(net, machines)
    return Result(
        "model",
        net.name,
        machines,
        call(net, machines),
        simulated,
        reduced,
        sent,
        there,
        simulated / LOCAL,
    )


def main() -> None:
    """Prints the tables."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--check", type=Path, metavar="FILE", help="results of machines.py to compare with"
    )
    given = parser.parse_args()
    if given.check is not None:
        check(given.check)
        return
    results = [result(net, machines) for net in NETWORKS for machines in SIZES]
    for net in NETWORKS:
        print(f"\n{net.name}")
        rows = [
            (
                f"{one.machines:,}",
                *(f"{seconds * 1e6:,.0f}" for seconds in (one.call, one.simulated)),
                *(
                    f"{seconds * 1e3:,.2f}"
                    for seconds in (one.all_reduce, one.rows_sent, one.rows_there)
                ),
                f"{one.ratio:.1f}",
            )
            for one in results
            if one.network == net.name
        ]
        print_table(
            (
                "machines",
                "call µs",
                "simulated",
                "all_reduce ms",
                "rows sent ms",
                "rows there ms",
                "ratio",
            ),
            rows,
        )
    save(given.json, "scaling", results, {})


if __name__ == "__main__":
    main()
