"""`synknumba cache`: the compiled kernels on disk."""

import argparse
import os
import sys
from pathlib import Path

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
        why = (
            "SYNKNUMBA_CACHE turns it off"
            if "SYNKNUMBA_CACHE" in os.environ
            else "there is no home directory"
        )
        raise CommandError(f"there is no cache: {why}; SYNKNUMBA_CACHE_DIR sets its directory")
    return _show(path, as_json=args.json) if args.action == "info" else _clear(path, sure=args.yes)


def _show(path: Path, *, as_json: bool) -> int:
    used = {name: store.usage() for name, store in stores(path).items()}
    if as_json:
        usages = {
            name: {"count": usage.kernels, "bytes": usage.nbytes} for name, usage in used.items()
        }
        print_json({"schema": SCHEMA, "path": str(path), "limit": LARGEST_TOTAL, **usages})
        return SUCCESS
    print(f"{'directory':<12}{path}{'' if path.is_dir() else ', which does not exist yet'}")
    print(
        f"{'kernels':<12}{used['kernels'].kernels}, {mib(used['kernels'].nbytes)} of at "
        f"most {mib(LARGEST_TOTAL)}"
    )
    print(
        f"{'package':<12}{used['package'].kernels} functions of synknumba itself, "
        f"{mib(used['package'].nbytes)}"
    )
    return SUCCESS


def _clear(path: Path, *, sure: bool) -> int:
    used = [store.usage() for store in stores(path).values()]
    count, nbytes = sum(usage.kernels for usage in used), sum(usage.nbytes for usage in used)
    if not count:
        print(f"{path} has no kernels")
        return SUCCESS
    if not sure and not _confirmed(f"Remove {count} kernels, {mib(nbytes)}, from {path}? [y/N] "):
        print("nothing was removed")
        return FAILED
    removed = [store.clear() for store in stores(path).values()]
    print(
        f"{sum(usage.kernels for usage in removed)} kernels, "
        f"{mib(sum(usage.nbytes for usage in removed))}, removed from {path}"
    )
    remaining = count - sum(usage.kernels for usage in removed)
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
