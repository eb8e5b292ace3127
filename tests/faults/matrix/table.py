"""All cases by their names, and what is found wrong with what was seen of one."""

import re
from collections.abc import Iterator
from typing import Any

from tests.faults.matrix.cases import Case, Fault, process_faults
from tests.faults.matrix.troubles import TROUBLES
from tests.quick import each_value_once

Outcome = dict[str, Any]

BUSY_SECONDS = 10.0  # more, on a machine that others use; the report has the seconds that it took


def _all() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for case in process_faults():
        assert case.id not in cases, case.id
        cases[case.id] = case
    for name, trouble in TROUBLES.items():
        for world_size, ranks in trouble.places:
            words = tuple(
                word.replace("{ranks}", ", ".join(map(str, ranks))) for word in trouble.words
            )
            case = Case(
                Fault(name, "", ranks),
                world_size,
                trouble.error,
                words,
                stays_open=trouble.stays_open,
                within=trouble.within,
                small_shm=trouble.small_shm,
            )
            assert case.id not in cases, case.id
            cases[case.id] = case
    return cases


CASES = _all()


def representative() -> set[str]:
    """One case of each fault at each phase; of all that differ in the ranks alone, the next one
    each time.
    """
    groups: dict[Any, list[str]] = {}
    for name, case in CASES.items():
        fault, second = case.fault, case.second
        key = (fault.what, fault.phase, bool(fault.ranks), second and (second.what, second.phase))
        groups.setdefault(key, []).append(name)
    return {names[number % len(names)] for number, names in enumerate(groups.values())}


def quick() -> set[str]:
    """Of the representative cases so few that each fault, each phase and each second fault is in
    one of them.
    """
    values = {name: set(_traits(CASES[name])) for name in sorted(representative())}
    return set(each_value_once(values))


def _traits(case: Case) -> Iterator[tuple[str, Any]]:
    yield from (("what", case.fault.what), ("phase", case.fault.phase), ("error", case.error))
    if case.second:
        yield from (("second", case.second.what), ("second phase", case.second.phase))


def problems(case: Case, seen: Outcome) -> list[str]:
    """Where what was seen is not what is promised."""
    if "broken" in seen:
        return [seen["broken"]]
    found = [f"left: {seen['left']}"] if seen["left"] else []
    if not seen["struck"]:
        found.append("the fault did not strike")
    if case.error == "ended":
        if seen["status"] != int(case.words[0]):
            found.append(f"the script ended with {seen['status']}")
    else:
        found += _told_wrong(case, seen)
    if seen["next"] != "right":
        found.append(f"the next call: {seen['next']}")
    if seen["seconds"] > case.within + BUSY_SECONDS:
        found.append(f"it took {seen['seconds']:.2f} s")
    return found


def _told_wrong(case: Case, seen: Outcome) -> list[str]:
    found = []
    if seen["error"] != case.error:
        found.append(
            f"{seen['error'] or 'nothing'} was raised, and not "
            f"{case.error or 'nothing'}: {seen['message']}"
        )
    found += [
        f"{word!r} is not in {seen['message']!r}"
        for word in case.words
        if not re.search(word, seen["message"])
    ]
    if seen["open"] != case.stays_open:
        found.append(f"the world is {'open' if seen['open'] else 'closed'}")
    if not seen["intact"]:
        found.append("Data have changed")
    if seen["ranks left"]:
        found.append(f"ranks live on: {seen['ranks left']}")
    return found + seen["leaks"]
