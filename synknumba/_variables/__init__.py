"""Variables: creation, allocation on the ranks, transfers and collectives.

create, collectives, restore      what scripts call
    collective_arguments          checks, before anything is sent
    collective_call               the world is taken, variables are placed, a plan is run
variable ── state ── values       a handle, what the coordinator knows, where the values are
    kept_values, failed_writes    values for the next world, and after a failure
collective_plans, gpu_…           transfers, and collectives as programs with their accesses
    allocation                    memory on all ranks

Called by scripts, by `_call` and `_sequence`, and by training; imports `_world` and what lies
below. Read `variable.py` and `state.py` first.
"""
