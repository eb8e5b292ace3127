"""Worlds of several machines: the same script under mpiexec or srun.

    mpiexec / srun starts one process on each machine

    machine 0                                          machine m
    ┌────────────────────────────────────┐            ┌─────────────────────────────────────┐
    │ script, the coordinator            │            │ agent                               │
    │   │ fork             │ fork        │            │   │ fork             │ fork         │
    │   ▼                  ▼             │            │   ▼                  ▼              │
    │ ranks 0 … a−1     relay 0 ◄────────┼─── MPI ────┼─► relay m        ranks a … b−1      │
    │   ▲                  ▲             │            │   ▲                  ▲              │
    │   └─ control block ──┘             │            │   └─ control block ──┘              │
    │ segments: the originals ───────────┼─── rows ───┼─► segments: mirrors                 │
    └────────────────────────────────────┘            └─────────────────────────────────────┘

MPI is initialised in the relays only, which are forked before anything else and never fork: so
ranks are forked from a process without MPI, as on one machine, and the script is never blocked
inside MPI.

The relay of machine 0 answers rounds like a rank, in a line of the control block of its own. It
brings each round to the other relays, which ring their ranks, and brings the results back before it
arrives; small results go to the rows of the control block where ranks of one machine write theirs.
The agent forks the ranks of its machine and looks after them, with the same code as the coordinator
does (`_world/processes.py`, `_world/rounds.py`).

Called by `synknumba run`; the core knows `_world/machines.py` alone. Imports `_world` and what lies
below. Read `launch.py` first, then `coordinator.py` and `relay.py`.
"""
