"""Starts the script of a case, strikes, and waits for its end."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired

from tests.faults.attack.cases import FAULTS, INTERPRETERS, Case
from tests.faults.nursery import Nursery
from tests.faults.scripts import members, names_in_shm

VICTIM = Path(__file__).with_name("victim.py")
POLL_SECONDS = 0.002
LEFT_SECONDS = 15.0  # for the processes of a script that has ended; the output process waits for 5 s for its reader
DUMP_SECONDS = 1.0


@dataclass(slots=True)
class Seen:
    """What was seen of a case.

    Attributes:
        status: of the script's exit; minus the signal where one ended it, None if it hung.
        log: lines that it has written.
        errors: its stderr.
        processes: that it has left, each in words.
        names: in `/dev/shm` that are new.
        struck: whether the fault has struck.
        stacks: of a script that hung, and of its ranks.
    """

    status: int | None
    log: list[str]
    errors: str = ""
    processes: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    struck: bool = False
    stacks: str = ""


class Arena:
    """Runs cases, one after the other, in folders of their own.

    Args:
        folder: where the folders of cases are made.
        patience: seconds that a script may take.
        victim: the file of the script.
        plain: a nursery without variables that is there already; whoever made it closes it.
    """

    def __init__(self, folder: Path, patience: float = 120.0, victim: Path = VICTIM, plain: Nursery | None = None) -> None:
        self.folder, self.patience, self.victim, self._plain = folder, patience, victim, plain
        self.cache = folder / "cache"  # with what the script compiles
        self._nurseries: dict[str, Nursery] = {}

    def close(self) -> None:
        for nursery in self._nurseries.values():
            nursery.close()

    def forget(self, case: Case) -> None:
        """Removes the folder of a case."""
        shutil.rmtree(self.place(case), ignore_errors=True)

    def place(self, case: Case) -> Path:
        return self.folder / case.name.replace(":", "-")

    def run(self, case: Case) -> Seen:
        """Carries a case out. Its folder stays, with the script, what it wrote, and what it was given."""
        if not self.cache.exists() and case.surroundings.get("cache", "none") != "none":
            self.run(Case("warm", surroundings={"cache": "none"}))
            shutil.move(self.folder / "warm" / "cache", self.cache)
        place = self.place(case)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        shutil.copy(self.victim, place / "script.py")
        (place / "case.json").write_text(json.dumps(case.as_dict()))
        self._lay_out_cache(case, place / "cache")
        names = names_in_shm()
        with (place / "errors").open("w") as errors:
            script = self._nursery(case.interpreter).start(place / "script.py", errors.fileno())
        seen = Attack(case, place, script.pid).carry_out(script.wait, self.patience)
        for stream in (script.stdin, script.stdout):
            with suppress(OSError):
                stream.close()
        seen.names = _lasting(lambda: names_in_shm() - names)
        return seen

    def _nursery(self, interpreter: str) -> Nursery:
        if interpreter == "plain" and self._plain is not None:
            return self._plain
        if interpreter not in self._nurseries:
            self._nurseries[interpreter] = Nursery(**INTERPRETERS[interpreter])
        return self._nurseries[interpreter]

    def _lay_out_cache(self, case: Case, cache: Path) -> None:
        """Makes the directory of compiled kernels that the script finds."""
        kind = case.surroundings.get("cache", "none")
        if kind == "a file":
            cache.write_text("not a directory")
        elif kind not in {"none", "nowhere", "of"}:
            shutil.copytree(self.cache, cache)
            for path in sorted(path for path in cache.rglob("*") if path.is_file() and not path.name.startswith(".")):
                _spoil(path, kind, case.which)


def _spoil(path: Path, kind: str, which: int) -> None:
    content = path.read_bytes()
    match kind:
        case "damaged":
            at = which * 7919 % len(content)
            path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        case "truncated":
            path.write_bytes(content[: which * 7919 % len(content)])
        case "FIFOs":
            path.unlink()
            os.mkfifo(path)
        case "directories":
            path.unlink()
            path.mkdir()


class Attack:
    """One attack on one script."""

    def __init__(self, case: Case, place: Path, pid: int) -> None:
        self.case, self.place, self.pid = case, place, pid
        self.struck = False

    def carry_out(self, wait: Callable[[float], int], patience: float) -> Seen:
        began = time.monotonic()
        self._await_phase(began + patience)
        self._strike()
        try:
            status, stacks = wait(patience), ""
        except TimeoutExpired:
            status, stacks = None, self._stacks()
        left = [] if status is None else sorted(_lasting(lambda: {_describe(pid) for pid in self._alive()}))
        self._end_all()
        if status is None:
            wait(patience)
        errors = (self.place / "errors").read_text(errors="replace")
        return Seen(status, self._log(), errors, left, struck=self.struck, stacks=stacks)

    def _log(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.place / "log").read_text().splitlines()
        return []

    def _alive(self) -> set[int]:
        return members(self.pid)

    def _await_phase(self, deadline: float) -> None:
        while "phase" not in self._log() and time.monotonic() < deadline and self._alive():
            time.sleep(POLL_SECONDS)
        time.sleep(self.case.delay)

    # ---- strikes

    def _strike(self) -> None:
        """Lets the fault strike, as often as the case has it; where the script itself does it, it says so."""
        act, *words = FAULTS[self.case.fault].act.split()
        if act in {"on", "close"}:
            self.struck = True
            return
        count, gap = self.case.strikes
        for number in range(count):
            with suppress(ProcessLookupError, FileNotFoundError, PermissionError):
                self.struck |= self._act(act, *words)
            if number + 1 < count:
                time.sleep(gap)
        (self.place / "struck").touch()

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
        if target == "script":
            os.kill(self.pid, number)
            return True
        if target == "group":
            os.killpg(self.pid, number)
            return True
        children = sorted(self._alive() - {self.pid})
        scribes = [pid for pid in children if _told(pid, "comm").strip() == "synk-scribe"]
        chosen = scribes if target == "scribe" else [pid for pid in children if pid not in scribes]
        if target == "rank" and chosen:
            chosen = [chosen[self.case.which % len(chosen)]]
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(chosen)

    def _truncate(self) -> bool:
        """Truncates one of the script's own memory files."""
        folder = Path(f"/proc/{self.pid}/fd")
        files = [fd for fd in folder.iterdir() if "/synk-" in os.readlink(fd) or "memfd:synk-" in os.readlink(fd)]
        if files:
            os.truncate(files[self.case.which % len(files)], 0)
        return bool(files)

    # ---- the end

    def _stacks(self) -> str:
        """Where a script that hangs is, and its processes."""
        lines = [_describe(pid) for pid in sorted(self._alive())]
        for pid in sorted(self._alive(), reverse=True):  # `victim` registers a handler, which ranks inherit
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGUSR2)
            time.sleep(DUMP_SECONDS)
        with suppress(FileNotFoundError):
            lines.append((self.place / "stacks").read_text(errors="replace"))
        return "\n".join(lines)

    def _end_all(self) -> None:
        for pid in self._alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _lasting(look: Callable[[], set[str]]) -> set[str]:
    """What is still seen when `LEFT_SECONDS` are over; nothing if it goes before."""
    deadline = time.monotonic() + LEFT_SECONDS
    seen = look()
    while (found := look() & seen) and time.monotonic() < deadline:
        seen = found
        time.sleep(POLL_SECONDS)
    return found


def _told(pid: int, file: str) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{file}").read_text()
    return ""


def _describe(pid: int) -> str:
    """A process in words: number, name, state, what it waits in."""
    stat = _told(pid, "stat").rpartition(")")[2].split()
    state, parent = stat[:2] or ("gone", "")
    return f"{pid} {_told(pid, 'comm').strip()} {state} {_told(pid, 'wchan')} parent {parent}"
