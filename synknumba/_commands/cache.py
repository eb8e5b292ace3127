"""`synknumba cache`: the compiled kernels on disk."""

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from synknumba._commands.terminal import (
    FAILED,
    SUCCESS,
    CommandError,
    Subparsers,
    add_command,
    mib,
    print_json,
)
from synknumba.simt.internals import LARGEST_TOTAL, KernelStore, directory

SCHEMA = 1  # of the JSON; raised when a key changes its meaning or goes

DESCRIPTION = """\
Shows or empties the cache of compiled kernels, of cores and of GPUs. It may be emptied
at any time, also while scripts run: kernels are compiled again when they are called.
CuPy has a cache of its own (~/.cupy/kernel_cache), which is not touched."""


def add(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "cache",
        _run,
        "show or empty the cache of compiled kernels",
        DESCRIPTION,
        ("cache info", "cache clear", "cache clear --yes"),
    )
    parser.add_argument(
        "action",
        choices=("info", "clear"),
        help="info: directory, number and size; clear: remove all kernels",
    )
    parser.add_argument("--yes", action="store_true", help="clear without asking")
    parser.add_argument(
        "--json", action="store_true", help="with info: print one JSON object, whose keys stay"
    )


def stores(path: Path) -> dict[str, KernelStore]:
    """Returns the stores in the directory of the cache: of users' kernels, and of the package's
    own functions.
    """
    return {"kernels": KernelStore(path), "package": KernelStore(path / "package")}


def _run(args: argparse.Namespace) -> int:
    path = directory()
    if path is None:
        why = "there is no home directory"
        if "SYNKNUMBA_CACHE" in os.environ:
            why = "SYNKNUMBA_CACHE turns it off"
        raise CommandError(f"there is no cache: {why}; SYNKNUMBA_CACHE_DIR sets its directory")
    if args.action == "info":
        return _show(path, as_json=args.json)
    return _clear(path, sure=args.yes)


def _total(usages: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Returns the number of kernels of several stores, and their bytes."""
    counts, sizes = zip(*usages, strict=True)
    return sum(counts), sum(sizes)


def _show(path: Path, *, as_json: bool) -> int:
    kernels, package = (store.usage() for store in stores(path).values())
    if as_json:
        facts: dict[str, Any] = {"schema": SCHEMA, "path": str(path), "limit": LARGEST_TOTAL}
        for name, usage in (("kernels", kernels), ("package", package)):
            facts[name] = {"count": usage.kernels, "bytes": usage.nbytes}
        print_json(facts)
        return SUCCESS
    place = str(path)
    if not path.is_dir():
        place += ", which does not exist yet"
    print(f"{'directory':<12}{place}")
    print(
        f"{'kernels':<12}{kernels.kernels}, {mib(kernels.nbytes)} of at most {mib(LARGEST_TOTAL)}"
    )
    print(f"{'package':<12}{package.kernels} functions of synknumba itself, {mib(package.nbytes)}")
    return SUCCESS


def _clear(path: Path, *, sure: bool) -> int:
    count, nbytes = _total(store.usage() for store in stores(path).values())
    if not count:
        print(f"{path} has no kernels")
        return SUCCESS
    if not sure and not _confirmed(f"Remove {count} kernels, {mib(nbytes)}, from {path}? [y/N] "):
        print("nothing was removed")
        return FAILED
    removed, freed = _total(store.clear() for store in stores(path).values())
    print(f"{removed} kernels, {mib(freed)}, removed from {path}")
    remaining = count - removed
    if remaining > 0:
        raise CommandError(
            f"{remaining} kernels could not be removed from {path}: permission denied, "
            f"or scripts write new ones"
        )
    return SUCCESS


def _confirmed(question: str) -> bool:
    """Asks at the terminal; CommandError without one."""
    if not sys.stdin.isatty():
        raise CommandError("there is no terminal to ask at; pass --yes to remove the kernels")
    try:
        return input(question).strip().lower() in {"y", "yes"}
    except EOFError:
        print()
        return False
