"""Several machines: what a call costs over them, beside one machine with as many ranks and beside
mpi4py.

    python benchmarks/machines.py
    python benchmarks/machines.py --ranks 2 4 8 --python ~/openmpi/bin/python --json
    benchmarks/results/cores2-machines.json
    sudo python benchmarks/machines.py --network           # TCP between machines that share nothing

Machines are processes of mpiexec, here on one host, with a rank each; that of --python's
environment, if it has one. Each has cores of its own, as many as there are for each, on which its
ranks stay. The jobs of synknumba and mpi4py run in turns, --repeats times, and the figures are
medians of their medians.

"ratio": for calls, to that on one machine and three times mpi4py's bcast and gather; for rows and
all_reduce, to mpi4py's Scatter in place and Allreduce, of memory that processes can share. "not
shared": the same of NumPy's own memory, whose large pages the kernel copies faster from process to
process of one host.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from _common import ROOT, arguments, print_table, save

sys.path.insert(0, str(ROOT))

from tests.machines.namespaces import VARIABLES, Network

HERE = Path(__file__).parent
CALLS = ("empty call", "kernel and sum, frozen rows", "kernel and sum, 8 KB of rows")
PARTS = ("large rows", "all_reduce of 10^5", "large all_reduce")


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table, in microseconds."""

    library: str
    what: str
    machines: int
    several: float
    one: float  # on one machine
    peer: float
    ratio: float
    peer_not_shared: float | None = None


def launcher(python: Path) -> list[str]:
    """The command that starts processes under MPI."""
    own = python.parent / "mpiexec"
    found = str(own) if own.exists() else shutil.which("mpiexec")
    if found is None:
        raise SystemExit("machines.py needs mpiexec: pip install mpich mpi4py")
    told = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    if "HYDRA" in told and "Intel" not in told:
        return [found, "-bind-to", "none"]
    return (
        [found, "--oversubscribe", "--bind-to", "none"]
        if "Open MPI" in told or "prte" in told.lower()
        else [found]
    )


def library(python: Path) -> str:
    """The name and version of an environment's MPI."""
    asked = "from mpi4py import MPI; print(MPI.Get_library_version())"
    told = subprocess.run(
        [str(python), "-c", asked], capture_output=True, text=True, check=True
    ).stdout
    return " ".join(told.splitlines()[0].partition(", package")[0].replace("Version:", "").split())


def run(command: Sequence[str], more: Mapping[str, str]) -> dict[str, float]:
    """Runs a job with more variables; returns the medians that it prints."""
    variables = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **variables, **more}
    )
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: timing["median"] for name, timing in told.items()}


def measure(
    machines: int,
    python: Path,
    seconds: float,
    nbytes: int,
    repeats: int,
    network: Network | None = None,
) -> list[Result]:
    """The rows of the table for a number of machines."""
    start = launcher(python) if network is None else network.launcher(launcher(python))
    variables = VARIABLES if network else {}
    cores = sorted(os.sched_getaffinity(0))
    own = [
        cores[index * len(cores) // machines : (index + 1) * len(cores) // machines]
        for index in range(machines)
    ]
    lists = " ".join(",".join(map(str, few or cores)) for few in own)
    on_own = [
        "bash",
        "-c",
        f'own=({lists}); exec taskset -c ${{own[${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}]}} "$@"',
        "_",
    ]
    several = [*start, "-n", str(machines), *on_own, str(python)]
    script = [str(HERE / "_machines_job.py"), str(machines), str(seconds), str(nbytes)]
    jobs = {
        "several": [*several, "-m", "synknumba", "run", "--ranks-per-node", "1", *script],
        "one": [str(python), *script],
        "peer": [*several, str(HERE / "_machines_peer.py"), str(seconds), str(nbytes)],
    }
    told: dict[str, list[dict[str, float]]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, command in jobs.items():
            told[name].append(run(command, {} if name == "one" else variables))
    medians = {
        name: {key: statistics.median(one[key] for one in found) for key in found[0]}
        for name, found in told.items()
    }
    out = []
    for what in (*CALLS, *PARTS):
        ours, alone = medians["several"][what], medians["one"][what]
        peer = medians["peer"]["bcast and gather" if what in CALLS else what]
        ratio = ours / (alone + 3 * peer) if what in CALLS else ours / peer
        out.append(
            Result(
                "synknumba",
                what,
                machines,
                ours,
                alone,
                peer,
                ratio,
                medians["peer"].get(what + ", not shared"),
            )
        )
    return out


def main() -> None:
    """Measures and prints."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(sys.executable),
        help="of an environment with mpi4py and an MPI",
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="how often each job runs (default: 3)"
    )
    parser.add_argument(
        "--bytes", type=float, default=4e7, help="of large rows and arrays (default: 4e7)"
    )
    parser.add_argument(
        "--network", action="store_true", help="give each machine a network of its own; needs root"
    )
    given = parser.parse_args()
    results: list[Result] = []
    for machines in given.ranks or [2]:
        asked = (
            machines,
            given.python,
            given.seconds,
            int(given.bytes) // 1000 * 1000,
            given.repeats,
        )
        if given.network:
            with TemporaryDirectory() as folder, Network(machines, Path(folder)) as network:
                results += measure(*asked, network)
        else:
            results += measure(*asked)
    head = ("", "machines", "µs", "one machine", "mpi4py", "ratio", "not shared")
    rows = []
    for one in results:
        times = (
            [one.several, one.one, one.peer],
            [] if one.peer_not_shared is None else [one.peer_not_shared],
        )
        before, after = ([f"{value:,.1f}" for value in part] for part in times)
        rows.append((one.what, str(one.machines), *before, f"{one.ratio:.2f}", *(after or [""])))
    print_table(head, rows)
    settings = {
        "seconds": given.seconds,
        "repeats": given.repeats,
        "bytes": given.bytes,
        "network": given.network,
        "mpi": library(given.python),
        "mpiexec": launcher(given.python)[1:],
    }
    save(given.json, "machines", results, settings)


if __name__ == "__main__":
    main()
