"""Findings of compiled code: hands what the runtime has noted in its table to the watch."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np

from synknumba._errors import Access, BoundsError, Finding, KernelCheckError
from synknumba.simt._checker import layout
from synknumba.simt._checker.instrument import Site, Sites
from synknumba.simt._checker.launch_memory import LaunchMemory
from synknumba.simt._checker.watch import CheckWatch
from synknumba.simt._library.words import WARP_SIZE
from synknumba.simt._python.cuda import Dim3
from synknumba.simt._python.findings import (
    BOUNDS_ADVICE,
    described_part,
    fault_advice,
    shown_index,
)
from synknumba.simt._python.run import Launch

# What an access does, by the number in a finding.
_WHAT: Final = ("read", "write", "write", "atomic", "raises")


def access_at(site: Site, what: str, thread: Dim3, block: Dim3) -> Access:
    """Returns the record of an access at a site."""
    return Access(what, (*thread,), (*block,), site.function, site.filename, site.line)


class CompiledFindings:
    """Hands what compiled code has found to the watch."""

    def __init__(self, launch: Launch, sites: Sites, memory: LaunchMemory) -> None:
        self._grid, self._block = launch.grid, launch.block
        self._watch = cast(CheckWatch, launch.watch)
        self._sites, self._memory = sites, memory
        # of the entries of the table, in order: the finding, its kind, how often it is counted
        self._counted: list[tuple[Finding, str, int]] = []

    def site(self, key: int) -> Site:
        """Returns the place of an access in the user's source."""
        return self._sites.all[key & 0xFFFF]

    def access(self, what: str, key: int) -> Access:
        """Returns the `Access` of a key."""
        thread = self._block.at(key >> 16 & 1023)
        return access_at(self.site(key), what, thread, self._grid.at((key >> 26) - 1))

    def drain(self) -> None:
        """Adds what is new in the table."""
        watch, table = self._watch, self._memory.findings
        for entry in table[1 + len(self._counted) : 1 + int(table[0, 0])]:
            finding, kind = self._finding(entry)
            self._counted.append((finding, kind, 1))
            if finding.error is KernelCheckError and kind != "unassigned":
                watch.fault(finding)  # which raises where other threads may wait for this one
            else:
                watch.add(finding, kind)
        for position, (finding, kind, counted) in enumerate(self._counted):
            times = int(table[position + 1, layout.FOUND_TIMES])
            if times > counted:
                watch.add(replace(finding, times=times - counted), kind)
                self._counted[position] = finding, kind, times

    def _finding(self, entry: np.ndarray[Any, Any]) -> tuple[Finding, str]:
        """Returns the finding of an entry of the table, and the kind that tells it from others
        on the same lines.
        """
        kinds, now = int(entry[layout.FOUND_KINDS]), int(entry[layout.FOUND_NOW])
        before, where = int(entry[layout.FOUND_BEFORE]), int(entry[layout.FOUND_AT])
        kind = kinds >> 8
        place = self.access(_WHAT[kinds & 15], now)
        match kind:
            case layout.FAULT:
                text = layout.FAULTS[kinds >> 4 & 15]
                name = text.partition(":")[0]
                return Finding(KernelCheckError, text, (place,), fault_advice(name)), name
            case layout.UNSET:
                name = self.site(now).array
                return self._watch.unassigned_finding(name, place), "unassigned"
            case layout.ABSENT:
                lane = (now >> 16 & 1023) % WARP_SIZE
                return self._watch.absent_finding(lane, where, place), "absent"
            case layout.OUTSIDE:
                return self._outside(entry[layout.FOUND_DETAIL :], place, now), ""
        memory, address = self._memory.at(where, self.site(now))
        index = memory.index_of(address)
        if kind == layout.UNWRITTEN:
            return self._watch.unwritten_finding(memory, index, place), "unwritten"
        first = self.access(_WHAT[kinds >> 4 & 15], before)
        sides = _side(before, first), _side(now, place)
        return self._watch.race_finding(memory, index, (first, place), sides), ""

    def _outside(self, detail: np.ndarray[Any, Any], place: Access, now: int) -> Finding:
        data, packed = int(detail[0]), int(detail[1])
        axes, mask = packed & 255, packed >> 8
        indices = detail[2 : 2 + axes].tolist()
        shape = tuple(detail[2 + layout.MOST_AXES : 2 + layout.MOST_AXES + axes].tolist())
        parts: list[Any] = [slice(None)] * mask.bit_length()
        for axis in range(len(parts)):
            if mask >> axis & 1:
                parts[axis] = indices[axis]
        memory, _ = self._memory.at(data, self.site(now), shape)
        summary = f"index {shown_index(parts)} is outside of {described_part(shape, memory)}"
        numbers = tuple(part for part in parts if not isinstance(part, slice))
        return Finding(BoundsError, summary, (place,), BOUNDS_ADVICE, memory.name, numbers)


def _side(key: int, access: Access) -> SimpleNamespace:
    """Returns what the advice for a race depends on, of one of the accesses."""
    thread = SimpleNamespace(block=key >> 26, number=key >> 16 & 1023)
    return SimpleNamespace(thread=thread, line=access.line, what=access.what)
