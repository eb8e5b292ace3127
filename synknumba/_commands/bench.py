"""`synknumba bench`: this machine's own numbers."""

import argparse
import sys
from dataclasses import replace

from synknumba._commands.bench_results import compare, show
from synknumba._commands.terminal import (
    SUCCESS,
    CommandError,
    Subparsers,
    add_command,
    check_writable,
    positive,
    print_json,
)

DESCRIPTION = """\
Measures this machine in about a minute: a call, a kernel and its sum, the bandwidth of a
kernel over rows beside NumPy's copy, all_reduce by size, rows that are sent, and the same
work on 1 to all ranks. Each number is the median of five rounds, with their range.

--compare tells two saved runs apart: ratios, and which numbers differ by more than that."""


def add(commands: Subparsers) -> None:
    """Adds the command."""
    parser = add_command(
        commands,
        "bench",
        _run,
        "measure calls, bandwidth, collectives and scaling on this machine",
        DESCRIPTION,
        (
            "bench",
            "bench --quick --device cpu --ranks 4",
            "bench --json before.json",
            "bench --compare before.json after.json",
        ),
    )
    parser.add_argument(
        "--quick", action="store_true", help="about 10 s: small arrays, short rounds"
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cuda", "cpu"),
        default="auto",
        help="of the ranks; default: auto",
    )
    parser.add_argument(
        "--ranks",
        type=positive,
        metavar="N",
        help="the largest number of ranks; default: one for each device",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="time for all measurements, without starts and compilation",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write the results to FILE; - prints them in place of tables"
    )
    parser.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="compare two files; nothing is measured"
    )


def _run(args: argparse.Namespace) -> int:
    if args.compare:
        if args.json or args.ranks:
            raise CommandError(
                "--compare reads two files and measures nothing; leave out --json and --ranks"
            )
        compare(args.compare)
        return SUCCESS
    from synknumba._commands import bench_measure

    sizes = bench_measure.FULL
    if args.quick:
        sizes = bench_measure.QUICK
    if args.seconds is not None:
        if not 0 < args.seconds < 86400:
            raise CommandError(
                f"--seconds must be more than 0, and less than a day; got {args.seconds:g}"
            )
        sizes = replace(sizes, seconds=args.seconds)
    if args.json not in {None, "-"}:
        check_writable(args.json)
    report = bench_measure.measure(args.device, args.ranks, sizes, _progress)
    _progress("")
    if args.json == "-":
        print_json(report.as_json())
        return SUCCESS
    if args.json:
        report.save(args.json)
    show(report)
    return SUCCESS


def _progress(text: str) -> None:
    """Shows what is being measured in one line, which the next one replaces; on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
