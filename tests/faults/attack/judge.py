"""What must hold after every attack."""

import re

from tests.faults.attack.arena import Seen
from tests.faults.attack.cases import FAULTS, Case

NOISE = re.compile(r"Exception ignored|Traceback|Fatal Python|ResourceWarning|leaked|dumped core")


def findings(case: Case, seen: Seen) -> list[str]:
    """Where what was seen is not as promised; empty if everything is."""
    if seen.status is None:
        return [f"the script hangs\n{seen.stacks}"]
    fault = FAULTS[case.fault]
    found = []
    short = "memory" in case.limits  # LLVM aborts without memory, and Python cannot tell of each object
    if seen.status != 0 and seen.status not in fault.ends and not (short and seen.status in {-6, -11}):
        found.append(f"the script ended with {seen.status}")
    if seen.status == 0 and (not seen.log or seen.log[-1] not in {"done", "leaving"}):
        found.append("the script ended early")
    found += _told_wrong(case, seen.log)
    found += [line for line in seen.log if line.startswith(("wrong", "left"))]
    found += [f"a process is left: {words}" for words in seen.processes]
    found += [f"a name is left in /dev/shm: {name}" for name in seen.names]
    noise = "|".join([fault.noise or "$."] + ["Traceback"] * bool(case.limits) + ["Exception ignored|Fatal Python"] * short)
    if any(not re.search(noise, line) for line in seen.errors.splitlines() if NOISE.search(line)):
        found.append(f"it wrote: {seen.errors[-6000:]}")
    return found


def _told_wrong(case: Case, log: list[str]) -> list[str]:
    """Errors that the fault does not account for; at the end, when it is over, only a late Ctrl-C may come.

    A descriptor or memory that the script was robbed of may show later.
    """
    found, allowed = [], case.told
    for line in log:
        if line == "recovering" and not FAULTS[case.fault].harms:
            allowed &= {"KeyboardInterrupt"}
        kinds = line.split()[1].split(",") if line.startswith("told ") else []
        if kinds and not allowed.intersection(kinds):
            found.append(line)
    return found
