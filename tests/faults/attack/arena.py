"""Starts the script of a case, strikes, waits for its end, and tells what is not as promised."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired

from tests.faults.attack.cases import FAULTS, INTERPRETERS, Case
from tests.faults.nursery import Forked, Nursery
from tests.faults.scripts import members, names_in_shm

VICTIM = Path(__file__).with_name("victim.py")
POLL_SECONDS = 0.002
# for the processes of a script that has ended; the output process waits for 5 s for its reader
LEFT_SECONDS = 15.0
DUMP_SECONDS = 1.0
NOISE = re.compile(r"Exception ignored|Traceback|Fatal Python|ResourceWarning|leaked|dumped core")


@dataclass(slots=True)
class Seen:
    """What was seen of a case."""

    status: int | None = (
        None  # of the script's exit; minus the signal where one ended it, None if it hung
    )
    log: list[str] = field(default_factory=list)
    errors: str = ""  # what it wrote to stderr
    left: list[str] = field(default_factory=list)  # processes, in words, and names in `/dev/shm`
    struck: bool = False  # whether the fault has struck
    stacks: str = ""  # of a script that hung, and of its ranks


class Arena:
    """Runs cases, one after the other, in folders of their own.

    Args:
        folder: where the folders of cases are made.
        patience: seconds that a script may take.
        victim: the file of the script.
        plain: a nursery without variables that is there already; whoever made it closes it.
    """

    def __init__(
        self,
        folder: Path,
        patience: float = 120.0,
        victim: Path = VICTIM,
        plain: Nursery | None = None,
    ) -> None:
        self.folder, self.patience, self.victim = folder, patience, victim
        self._cache = folder / "cache"  # with what the script compiles
        self._nurseries = {} if plain is None else {"plain": plain}
        self._foreign = plain

    def close(self) -> None:
        for nursery in self._nurseries.values():
            if nursery is not self._foreign:
                nursery.close()

    def place(self, case: Case) -> Path:
        """The folder of a case; it stays, with the script, what it wrote, and what it was given."""
        return self.folder / case.name.replace(":", "-")

    def run(self, case: Case) -> Seen:
        """Carries a case out."""
        if not self._cache.exists() and case.surroundings.get("cache", "none") != "none":
            self.run(Case("warm", device=case.device, surroundings={"cache": "none"}))
            shutil.move(self.folder / "warm" / "cache", self._cache)
        place, names = self.place(case), names_in_shm()
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        shutil.copy(self.victim, place / "script.py")
        (place / "case.json").write_text(json.dumps(case.as_dict()))
        self._lay_out_cache(case, place / "cache")
        if case.interpreter not in self._nurseries:
            self._nurseries[case.interpreter] = Nursery(**INTERPRETERS[case.interpreter])
        with (place / "errors").open("w") as errors:
            script = self._nurseries[case.interpreter].start(place / "script.py", errors.fileno())
        seen = Attack(case, place, script).carry_out(self.patience)
        for stream in (script.stdin, script.stdout):
            with suppress(OSError):
                stream.close()
        seen.left += [f"/dev/shm/{name}" for name in _lasting(lambda: names_in_shm() - names)]
        return seen

    def _lay_out_cache(self, case: Case, cache: Path) -> None:
        """Makes the directory of compiled kernels that the script finds."""
        kind = case.surroundings.get("cache", "none")
        if kind == "a file":
            cache.write_text("not a directory")
        elif kind not in {"none", "nowhere", "off"}:
            shutil.copytree(self._cache, cache)
            for path in sorted(
                path
                for path in cache.rglob("*")
                if path.is_file() and not path.name.startswith(".")
            ):
                _spoil(path, kind, case.which * 7919)


def _spoil(path: Path, kind: str, at: int) -> None:
    content = path.read_bytes()
    at %= len(content)
    match kind:
        case "damaged":
            path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        case "truncated":
            path.write_bytes(content[:at])
        case "FIFOs":
            path.unlink()
            os.mkfifo(path)
        case "directories":
            path.unlink()
            path.mkdir()


class Attack:
    """One attack on one script."""

    def __init__(self, case: Case, place: Path, script: Forked) -> None:
        self.case, self.place, self.script, self.pid = case, place, script, script.pid

    def carry_out(self, patience: float) -> Seen:
        seen, deadline = Seen(), time.monotonic() + patience
        while "phase" not in self._log() and time.monotonic() < deadline and members(self.pid):
            time.sleep(POLL_SECONDS)
        time.sleep(self.case.delay)
        seen.struck = self._strike()
        try:
            seen.status = self.script.wait(patience)
            seen.left = sorted(_lasting(lambda: {_describe(pid) for pid in members(self.pid)}))
        except TimeoutExpired:
            seen.stacks = self._stacks()
        self._to_all(signal.SIGKILL)
        self.script.wait(patience)
        seen.log, seen.errors = self._log(), (self.place / "errors").read_text(errors="replace")
        return seen

    def _log(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.place / "log").read_text().splitlines()
        return []

    # ---- strikes

    def _strike(self) -> bool:
        """Lets the fault strike, as often as the case has it; where the script itself does it,
        it says so.
        """
        act, *words = FAULTS[self.case.fault].act.split()
        if act in {"on", "close"}:
            return True
        struck, (count, gap) = False, self.case.strikes
        for number in range(count):
            time.sleep(gap if number else 0.0)
            with suppress(ProcessLookupError, FileNotFoundError, PermissionError):
                struck |= self._act(act, *words)
        (self.place / "struck").touch()
        return struck

    def _act(self, act: str, target: str = "", number: str = "0") -> bool:
        match act:
            case "signal":
                return self._send(target, signal.Signals(int(number)))
            case "pause":
                found = self._send(target, signal.SIGSTOP)
                time.sleep(self.case.seconds)
                return self._send(target, signal.SIGCONT) and found
            case "truncate":
                return self._truncate()
            case "remove":
                shutil.rmtree(self.place / "cache", ignore_errors=True)
        return True

    def _send(self, target: str, number: signal.Signals) -> bool:
        """Sends a signal; False if nobody is there to get it."""
        if target == "group":
            os.killpg(self.pid, number)
            return True
        children = sorted(members(self.pid) - {self.pid})
        output = [pid for pid in children if "synk-scribe" in _describe(pid)]
        ranks = [pid for pid in children if pid not in output]
        chosen = {"script": [self.pid], "scribe": output, "ranks": ranks}.get(target, [])
        if target == "rank" and ranks:
            chosen = [ranks[self.case.which % len(ranks)]]
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(chosen)

    def _truncate(self) -> bool:
        """Truncates one of the script's own memory files."""
        folder = Path(f"/proc/{self.pid}/fd")
        files = [
            fd
            for fd in folder.iterdir()
            if "/synk-" in os.readlink(fd) or "memfd:synk-" in os.readlink(fd)
        ]
        if files:
            os.truncate(files[self.case.which % len(files)], 0)
        return bool(files)

    # ---- the end

    def _stacks(self) -> str:
        """Where a script that hangs is, and its processes; `victim` registers a handler, which
        ranks inherit.
        """
        lines = [_describe(pid) for pid in sorted(members(self.pid))]
        self._to_all(signal.SIGCONT)
        self._to_all(signal.SIGUSR2, DUMP_SECONDS)
        with suppress(FileNotFoundError):
            lines.append((self.place / "stacks").read_text(errors="replace"))
        return "\n".join(lines)

    def _to_all(self, number: signal.Signals, gap: float = 0.0) -> None:
        for pid in sorted(members(self.pid), reverse=True):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(gap)


def _lasting(look: Callable[[], set[str]]) -> set[str]:
    """What is still seen when `LEFT_SECONDS` are over; nothing if it goes before."""
    deadline = time.monotonic() + LEFT_SECONDS
    seen = look()
    while (found := look() & seen) and time.monotonic() < deadline:
        seen = found
        time.sleep(POLL_SECONDS)
    return found


def _describe(pid: int) -> str:
    """A process in words that stay the same: number and name."""
    with suppress(OSError):
        return f"process {pid} {Path(f'/proc/{pid}/comm').read_text().strip()}"
    return f"process {pid}"


# ---- what must hold afterwards -------------------------------------------------------------------


def findings(case: Case, seen: Seen) -> list[str]:
    """Where what was seen is not as promised; empty if everything is."""
    if seen.status is None:
        return [f"the script hangs\n{seen.stacks}"]
    fault = FAULTS[case.fault]
    found = []
    # LLVM aborts without memory, and Python cannot tell of each object
    short = "memory" in case.limits
    if (
        seen.status != 0
        and seen.status not in fault.ends
        and not (short and seen.status in {-6, -11})
    ):
        found.append(f"the script ended with {seen.status}")
    if seen.status == 0 and (not seen.log or seen.log[-1] not in {"done", "leaving"}):
        found.append("the script ended early")
    found += _told_wrong(case, seen.log)
    found += [line for line in seen.log if line.startswith(("wrong", "left"))]
    found += [f"left behind: {what}" for what in seen.left]
    noise = "|".join(
        [fault.noise or "$."]
        + ["Traceback"] * bool(case.limits)
        + ["Exception ignored|Fatal Python"] * short
    )
    if any(not re.search(noise, line) for line in seen.errors.splitlines() if NOISE.search(line)):
        found.append(f"it wrote: {seen.errors[-6000:]}")
    return found


def _told_wrong(case: Case, log: list[str]) -> list[str]:
    """Errors that the fault does not account for; at the end, when it is over, only a late Ctrl-C
    may come.

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
