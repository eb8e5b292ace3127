"""Faults that are put into the package one at a time, to see that the tests find them.

    python -m tests.seeded [--jobs N] [--only NAME ...] [--json FILE] [--seconds LIMIT] [--whole]
    python -m tests.seeded --check

For each fault the tracked files are copied to a temporary directory, the fault is put into the
copy, and pytest runs there: the tests that most likely find the fault first, and the others only if
these pass. The fault "none" changes nothing. All of these runs stop at the first failure, and take
the quick suite unless the whole one is asked for.

A fault is found if a test fails (pytest exits with 1), if pytest is ended by a signal, or if no
test ends for LIMIT seconds. The exit status is 0 if all faults are found.
"""

import argparse
import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tests", "synknumba", "kernels")
OWN_TEST = "tests/unit/test_seeded.py"  # in a copy with a fault its old code is not there
POLL_SECONDS = 0.2
SHOWN_LINES = 20  # of the output of a run that ends with an error of pytest's


@dataclass(frozen=True)
class Fault:
    """A small change of one file.

    Attributes:
        name: short, and unique.
        file: relative to the repository.
        old: code that is in the file exactly once.
        new: what is put in its place.
        near: test files and folders that most likely find it; they run first.
    """

    name: str
    file: str
    old: str
    new: str
    near: tuple[str, ...]


FAULTS = (
    # ---- arithmetic without processes
    Fault(
        "ops-identity-of-extremes",
        "synknumba/_ops/reduction.py",
        "return -np.inf, np.inf",
        "return np.finfo(dtype).min, np.finfo(dtype).max",
        ("tests/unit/test_reduction.py",),
    ),
    Fault(
        "ops-nan-not-the-best",
        "synknumba/_ops/reduction.py",
        "(rows < 0) | ((extreme != extreme) & (values == values))",
        "rows < 0",
        ("tests/conformance/test_locate.py",),
    ),
    Fault(
        "ops-large-mean-without-weights",
        "synknumba/_ops/reduction.py",
        "out[start:stop] = _weighted_mean(parts[:, start:stop], weights)",
        "out[start:stop] = _weighted_mean(parts[:, start:stop], np.minimum(weights, 1))",
        ("tests/conformance/test_large_reductions.py",),
    ),
    Fault(
        "ops-negative-step-to-row-zero",
        "synknumba/_ops/rows.py",
        "if stop < 0:",
        "if stop <= 0:",
        ("tests/conformance/test_rows.py", "tests/unit/test_partition.py"),
    ),
    Fault(
        "ops-squared-weights-scaled-once",
        "synknumba/_rowwise/moments.py",
        "np.full(columns.count, 2 * more)",
        "np.full(columns.count, more)",
        ("tests/unit/test_estimate.py",),
    ),
    Fault(
        "ops-tree-of-ops-by-order",
        "synknumba/_ops/tree.py",
        "value = [value[key] for key in keys]",
        "value = list(value.values())",
        ("tests/conformance/collectives/test_moves.py",),
    ),
    # ---- memory and processes of the host
    Fault(
        "host-used-items-forgotten",
        "synknumba/_host/data.py",
        "self._used = max(self._used, source.size)",
        "self._used = source.size",
        ("tests/unit/test_data.py",),
    ),
    Fault(
        "host-descriptor-left-open",
        "synknumba/_host/segment.py",
        "        finally:\n            os.close(fd)\n        segment = cls.__new__(cls)",
        "        except SharedMemoryError:\n            os.close(fd)\n            raise\n        "
        "segment = cls.__new__(cls)",
        ("tests/unit/test_shm.py",),
    ),
    Fault(
        "host-views-left-behind-by-a-move",
        "synknumba/_host/segment.py",
        "for old in filter(None, [mapped() for mapped in self._mappings]):",
        "for old in (self._mapping,):",
        ("tests/unit/test_makers.py",),
    ),
    Fault(
        "host-result-shared-with-a-child",
        "synknumba/_host/lent_results.py",
        "        place.make_private()\n        del _lent[place_id]",
        "        place.close()\n        del _lent[place_id]",
        ("tests/conformance/test_kept_results.py",),
    ),
    Fault(
        "host-second-signal-lost",
        "synknumba/_host/signals.py",
        "self._came.append(number)",
        "self._came[:] = [number]",
        ("tests/unit/test_signals.py",),
    ),
    Fault(
        "host-one-random-state-for-all-ranks",
        "synknumba/_host/inherited.py",
        "np.random.seed([rank, *np.random.randint(0, 2**32, 4, np.uint32)])",
        "np.random.seed([*np.random.randint(0, 2**32, 4, np.uint32)])",
        ("tests/faults/test_hygiene.py",),
    ),
    # ---- messages and programs
    Fault(
        "wire-known-call-of-other-rows",
        "synknumba/_wire/relaunch.py",
        "            values.ctypes.data,\n            len(packed),\n",
        "            values.ctypes.data,\n            packing.nbytes,\n",
        ("tests/unit/test_serving.py", "tests/conformance/test_served.py"),
    ),
    Fault(
        "wire-imaginary-part-is-the-real-one",
        "synknumba/_wire/relaunch.py",
        "index = self.first[place.position] + place.part",
        "index = self.first[place.position]",
        ("tests/conformance/test_replayed.py",),
    ),
    Fault(
        "wire-results-in-an-old-mapping",
        "synknumba/_wire/results.py",
        "if self._segment is not None and self._segment.size == size:",
        "if self._segment is not None:",
        ("tests/conformance/test_ops.py",),
    ),
    Fault(
        "ops-serial-call-of-the-first-shard",
        "synknumba/_ops/rows.py",
        "if self.shards is None:\n            return first, after",
        "if self.shards is None or self.partition.parts == 1:\n            return first, after",
        ("tests/conformance/test_shards.py",),
    ),
    Fault(
        "wire-parts-do-not-wait-in-loops",
        "synknumba/_wire/sequence.py",
        "part = replace(part, parts=tuple(ordered(part.parts, without)))",
        "part = replace(part, parts=tuple(part.parts))",
        ("tests/unit/test_sequence_waits.py", "tests/conformance/test_sequences.py"),
    ),
    # ---- the ranks from the outside
    Fault(
        "world-failure-of-another-rank",
        "synknumba/_world/failure.py",
        "(rank, item.type_name, item.message, item.traceback) for rank, item in failures\n",
        "(r, i.type_name, i.message, i.traceback) for r, (_, i) in enumerate(failures)\n",
        ("tests/conformance/test_errors.py",),
    ),
    Fault(
        "world-news-lost-beside-a-failure",
        "synknumba/_world/rounds.py",
        "        learn([entry for entry in news if not isinstance(entry[1], Failed)])\n"
        "        failures = [(rank, item) for rank, item, _ in news if isinstance(item, Failed)]\n",
        "        failures = [(rank, item) for rank, item, _ in news if isinstance(item, Failed)]\n"
        "        if not failures:\n"
        "            learn([entry for entry in news if not isinstance(entry[1], Failed)])\n",
        ("tests/conformance/test_errors.py",),
    ),
    Fault(
        "world-last-line-without-an-end",
        "synknumba/_world/output_process.py",
        "self._pass_on(pipe, all_of_it=True)",
        "self._pass_on(pipe)",
        ("tests/faults/test_hygiene.py",),
    ),
    Fault(
        "world-function-not-sent-again",
        "synknumba/_world/holdings.py",
        "self.shipped: set[int] = set()",
        'self.shipped: set[int] = globals().setdefault("shipped", set())',
        ("tests/conformance/test_worlds.py",),
    ),
    Fault(
        "world-signals-during-a-fork",
        "synknumba/_world/processes.py",
        "with held_signals(), contextlib.ExitStack() as child_ends:",
        "with contextlib.ExitStack() as child_ends:",
        ("tests/faults/test_interrupts.py",),
    ),
    # ---- a rank from the inside
    Fault(
        "rank-local-batch-by-starts",
        "synknumba/_wire/program.py",
        "tuple(values[2::3] if self.kind",
        "tuple(values[0::3] if self.kind",
        ("tests/conformance/variables/test_sliceable.py",),
    ),
    Fault(
        "rank-other-frozen-rows",
        "synknumba/_rank/routine.py",
        "(array.version, rows),",
        "array.version,",
        ("tests/conformance/test_frozen.py",),
    ),
    Fault(
        "rank-mean-of-a-shard-in-slices",
        "synknumba/_rank/outputs.py",
        "counts[_shard(rows)] += _weight(rows)",
        "counts[_shard(rows)] = _weight(rows)",
        ("tests/conformance/test_shards.py",),
    ),
    Fault(
        "rank-scalars-of-compiled-code",
        "synknumba/_rank/kernel_routine.py",
        '        binding.scalars = b""\n        self._packed = None',
        "        self._packed = None",
        ("tests/conformance/test_served.py",),
    ),
    Fault(
        "rank-nested-argument-used-again",
        "synknumba/_rank/function_routine.py",
        "return unflatten(argument.structure, leaves)",
        "return unflatten(argument.structure, argument.leaves)",
        ("tests/conformance/test_objects.py", "tests/conformance/test_arguments.py"),
    ),
    Fault(
        "rank-update-without-rows",
        "synknumba/_rank/outputs.py",
        "if program.solo and place.rank != 0:",
        "if not slices:",
        ("tests/conformance/variables/test_updates.py",),
    ),
    # ---- calls
    Fault(
        "call-plan-of-other-shards",
        "synknumba/_call/options.py",
        "return (self.num_slices, self.subset, self.solo, self.shards, bool(self.progress))",
        "return (self.num_slices, self.subset, self.solo, bool(self.progress))",
        ("tests/conformance/test_shards.py",),
    ),
    Fault(
        "call-scalar-of-another-dtype",
        "synknumba/_call/bind.py",
        "key.append((letter, dtype))",
        "key.append(letter)",
        ("tests/conformance/test_arguments.py",),
    ),
    Fault(
        "call-large-int-on-the-hot-path",
        "synknumba/_call/plan_cache.py",
        "elif kind is int and -(2**63) <= arg < 2**63:",
        "elif kind is int:",
        ("tests/conformance/test_arguments.py",),
    ),
    Fault(
        "call-result-of-one-rank-not-copied",
        "synknumba/_call/collect.py",
        "return lambda _: private_copy(parts[0])",
        "return lambda _: parts[0]",
        ("tests/conformance/test_arguments.py",),
    ),
    Fault(
        "call-best-row-without-the-step",
        "synknumba/_call/collect.py",
        "return start + step * positions",
        "return start + positions",
        ("tests/conformance/test_locate.py",),
    ),
    Fault(
        "call-ranks-of-different-dtypes",
        "synknumba/_call/plan.py",
        "if leaf.dtype != first.dtype or leaf.shape != first.shape:",
        "if leaf.shape != first.shape:",
        ("tests/conformance/test_ops.py", "tests/conformance/test_errors.py"),
    ),
    # ---- variables and collectives
    Fault(
        "variables-shards-not-noted",
        "synknumba/_variables/collective_call.py",
        "goal.mark(differs=differs, sharded=kind in SHARDING)",
        "goal.mark(differs=differs, sharded=False)",
        ("tests/conformance/collectives/test_lifetimes.py",),
    ),
    Fault(
        "variables-shape-of-rank-zero",
        "synknumba/_variables/collectives.py",
        "lambda shapes, _: shapes[root]",
        "lambda shapes, _: shapes[0]",
        ("tests/conformance/collectives/test_moves.py",),
    ),
    Fault(
        "variables-averages-of-unsigned-numbers",
        "synknumba/_variables/collective_arguments.py",
        '"biu", "an average',
        '"bi", "an average',
        ("tests/unit/collectives/test_bad_collectives.py",),
    ),
    Fault(
        "variables-halo-from-the-wrong-end",
        "synknumba/_ops/halo.py",
        "first = self.sides(below, len(counts))[0] + counts[below] - lower",
        "first = self.sides(below, len(counts))[0]",
        ("tests/unit/test_halo.py",),
    ),
    Fault(
        "variables-own-rows-over-the-halo",
        "synknumba/_variables/gpu_collective_plans.py",
        "tuple(storage.layout.own(leaf, rank).start for",
        "tuple(0 for",
        ("tests/conformance/variables/test_halo.py",),
    ),
    Fault(
        "variables-plans-of-a-replica-for-shards",
        "synknumba/_variables/state.py",
        '("shards" if self._values.sharded else "variable", storage.number)',
        '("variable", storage.number)',
        ("tests/conformance/variables/test_halo.py",),
    ),
    Fault(
        "variables-staged-from-rank-zero",
        "synknumba/_variables/gpu_collective_plans.py",
        "sent = on_rank(spec.root, gives[spec.root], len(gives))",
        "sent = on_rank(0, gives[0], len(gives))",
        ("tests/conformance/collectives/test_moves.py",),
    ),
    # ---- learning
    Fault(
        "learning-replicas-not-compared",
        "synknumba/_variables/state.py",
        "values.check_equal(self.label)",
        "values.own()",
        ("tests/conformance/variables/test_checkpoints.py",),
    ),
    Fault(
        "learning-halos-not-restored",
        "synknumba/_variables/restore.py",
        "Kept.divided(arrays, world.partition, halo)",
        "Kept.divided(arrays, world.partition, None)",
        ("tests/conformance/variables/test_checkpoints.py",),
    ),
    Fault(
        "learning-keys-with-dots",
        "synknumba/_learning/checkpoint_format.py",
        "[%.\\ud800-\\udfff]",
        "[%\\ud800-\\udfff]",
        ("tests/unit/test_checkpoint_files.py",),
    ),
    Fault(
        "learning-file-written-in-place",
        "synknumba/_learning/replaced_file.py",
        'new = folder / "new"',
        "new = target",
        ("tests/unit/test_checkpoint_errors.py", "tests/faults/test_checkpoints.py"),
    ),
    Fault(
        "learning-epochs-alike",
        "synknumba/_learning/batches.py",
        "self._seed + (epoch << _WORD_BITS)",
        "self._seed",
        ("tests/unit/test_batches.py",),
    ),
    # ---- functions of one row
    Fault(
        "rowwise-covariance-of-swapped-values",
        "synknumba/_rowwise/moment_kernels.py",
        "+ synk_x{j} * {s} + synk_x{i} * (",
        "+ synk_x{i} * {s} + synk_x{j} * (",
        ("tests/conformance/test_expectation_blocks.py", "tests/conformance/test_expectation.py"),
    ),
    Fault(
        "rowwise-barrier-behind-the-means",
        "synknumba/_rowwise/moment_kernels.py",
        '*_stored_means(recipe, target)]\n        ),\n        "cuda.syncthreads()",',
        "*_stored_means(recipe, target)]\n        ),",
        ("tests/conformance/test_expectation.py",),
    ),
    Fault(
        "rowwise-blocks-cut-by-ranks-lost",
        "synknumba/_rowwise/partials.py",
        "return parts[parts[:, 0] > 0]",
        "return parts[parts[:, 0] < 0]",
        ("tests/conformance/test_correlated_rows.py",),
    ),
    Fault(
        "rowwise-groups-in-reverse",
        "synknumba/_rowwise/map_kernels.py",
        "_both(recipe, 'synk_value', value)}\" for value in values[1:]",
        "_both(recipe, value, 'synk_value')}\" for value in values[1:]",
        ("tests/conformance/test_vectorize.py",),
    ),
    # ---- transports
    Fault(
        "comm-average-of-two-replicas",
        "synknumba/_comm/host.py",
        "                    if is_average:\n                        value /= "
        "divisor\n                    x[i] = value",
        "                    x[i] = value",
        ("tests/unit/test_comm_host.py",),
    ),
    Fault(
        "comm-extremes-of-signed-numbers",
        "synknumba/_comm/host.py",
        'if dtype.kind == "i" and op in {"sum", "prod"}:',
        'if dtype.kind == "i" and op != "avg":',
        ("tests/unit/test_comm_host.py",),
    ),
    # ---- random numbers
    Fault(
        "random-draws-beyond-32-bits",
        "synknumba/random.py",
        "last = ((d >> _HALF) & _DRAW_HIGH) | purpose",
        "last = purpose",
        ("tests/unit/random_streams/test_values.py",),
    ),
    # ---- sequences on a rank, relays, the updater
    Fault(
        "rank-fused-iterations-with-one-number",
        "synknumba/_rank/fused_parts.py",
        "offset = iteration + scheduled.iteration_offset",
        "offset = scheduled.iteration_offset",
        (
            "tests/conformance/test_sequence_stretches.py",
            "tests/conformance/test_carried_numbers.py",
        ),
    ),
    Fault(
        "machines-rows-of-the-first-ranks",
        "synknumba/_machines/routes.py",
        "low, high = plan.span(first, after)",
        "low, high = plan.span(0, after - first)",
        ("tests/unit/test_routes.py", "tests/machines"),
    ),
    Fault(
        "machines-nothing-comes-back",
        "synknumba/_machines/routes.py",
        "                    if writable:\n                        outs += moves",
        "                    if writable and by_position:\n                        outs += moves",
        ("tests/unit/test_routes.py", "tests/machines"),
    ),
    Fault(
        "learning-a-step-behind-the-table",
        "synknumba/_learning/updater.py",
        "if steps < {end} else nan",
        "if steps <= {end} else nan",
        ("tests/unit/test_training_errors.py",),
    ),
    Fault(
        "learning-gathered-gradients-not-averaged",
        "synknumba/_learning/updater.py",
        "real(1.0 / (count[{WAITING}] + 1))",
        "real(1.0)",
        ("tests/conformance/test_training.py", "tests/unit/test_optimisers.py"),
    ),
    # ---- the compiler for cores
    Fault(
        "simt-break-in-an-else",
        "synknumba/simt/_lower/desugar.py",
        "_flagged(statement.orelse, flag)",
        "statement.orelse",
        ("tests/unit/simt/test_language.py",),
    ),
    Fault(
        "simt-bound-too-wide",
        "synknumba/simt/_analysis/bounds.py",
        'ast.Gt: ("floor", " + 1")',
        'ast.Gt: ("floor", "")',
        ("tests/unit/simt/test_passes.py",),
    ),
    Fault(
        "simt-counter-used-behind-its-loop",
        "synknumba/simt/_analysis/loops.py",
        "syntax.read_names(stop) or syntax.count_names(behind, name):",
        "syntax.read_names(stop):",
        ("tests/unit/simt/test_passes.py",),
    ),
    Fault(
        "simt-mask-of-an-ended-iteration",
        "synknumba/simt/_emit/masks.py",
        "nested(loop.body, replace(inside, level=ended))",
        "nested(loop.body, inside)",
        ("tests/unit/simt/test_masks.py", "tests/conformance/simt/test_corpus.py"),
    ),
    Fault(
        "simt-new-value-of-an-atomic",
        "synknumba/simt/_library/atomics.py",
        "return impl_ret_borrowed(context, builder, element, old)",
        "return load_item(context, builder, array, pointer)",
        ("tests/conformance/simt/test_corpus.py",),
    ),
    Fault(
        "simt-shuffle-from-the-first-lane",
        "synknumba/simt/_library/collectives.py",
        "return lane - operand if lane >= operand else lane",
        "return lane - operand if lane > operand else lane",
        ("tests/unit/simt/test_collectives.py",),
    ),
    Fault(
        "simt-kernel-of-another-layout",
        "synknumba/simt/_machine/fingerprint.py",
        "{kind.ndim}, {kind.layout}, ",
        "{kind.ndim}, ",
        ("tests/unit/simt/test_cache.py", "tests/unit/simt/test_kernel.py"),
    ),
    Fault(
        "simt-race-behind-a-syncwarp",
        "synknumba/simt/_checker/races.py",
        "second.seen[first.lane] >= before.clock",
        "second.seen[first.lane] > before.clock",
        ("tests/unit/simt/test_check.py",),
    ),
    # ---- compiled checks, stand-ins, 16-bit floats
    Fault(
        "simt-races-of-atomics",
        "synknumba/simt/_checker/runtime.py",
        "(what == ATOMIC and k >> 1 == 1)",
        "(what == ATOMIC and k >> 1 == 0)",
        ("tests/unit/simt/test_compiled_check.py", "tests/conformance/simt/test_in_python.py"),
    ),
    Fault(
        "simt-one-byte-is-a-number",
        "synknumba/simt/_checker/runtime.py",
        "memset(written, 1, size)",
        "memset(written, 1, 1)",
        ("tests/unit/simt/test_compiled_check.py", "tests/conformance/simt/test_in_python.py"),
    ),
    Fault(
        "simt-elements-in-the-wrong-order",
        "synknumba/simt/_checker/runtime.py",
        "* get(sizes, axes + axis)",
        "* get(sizes, axes + place)",
        ("tests/unit/simt/test_compiled_check.py", "tests/conformance/simt/test_in_python.py"),
    ),
    Fault(
        "simt-record-of-one-field",
        "synknumba/simt/_checker/accesses.py",
        "            if not is_record:  # a record is a reference, whose fields are read later",
        "            if is_record:  # a record is a reference, whose fields are read later",
        ("tests/unit/simt/test_compiled_check.py",),
    ),
    Fault(
        "simt-part-outside-is-not-reported",
        "synknumba/simt/_checker/accesses.py",
        "            indexed.report(layout.READ, args[2])\n            builder.store(_zero_view",
        "            builder.store(_zero_view",
        ("tests/unit/simt/test_compiled_check.py", "tests/conformance/simt/test_in_python.py"),
    ),
    Fault(
        "simt-index-of-a-tuple-is-an-access",
        "synknumba/simt/_checker/instrument.py",
        "if of_shape or isinstance(value, tuple):",
        "if isinstance(value, tuple):",
        ("tests/unit/simt/test_compiled_check.py", "tests/conformance/simt/test_in_python.py"),
    ),
    Fault(
        "simt-stand-in-is-the-array-of-the-host",
        "synknumba/simt/_standins/arrays.py",
        'return self.simt_values.copy("K")',
        "return self.simt_values",
        ("tests/unit/simt/test_as_cuda.py",),
    ),
    Fault(
        "simt-stand-in-launches-unchecked",
        "synknumba/simt/_standins/replace.py",
        "        if not _blocks.are_checked:\n            return launcher\n",
        "        if _blocks.are_checked:\n            return launcher\n",
        ("tests/unit/simt/test_as_cuda.py",),
    ),
    Fault(
        "simt-halves-rounded-to-even",
        "synknumba/simt/_maths/rounding.py",
        'is_even = builder.icmp_unsigned("==", last, ir.Constant(bits.type, 0))',
        'is_even = builder.icmp_unsigned("!=", last, ir.Constant(bits.type, 0))',
        ("tests/unit/simt/test_float16.py", "tests/unit/simt/test_libdevice.py"),
    ),
    Fault(
        "simt-next-half-of-negatives",
        "synknumba/simt/_maths/rounding.py",
        'is_positive = builder.icmp_signed(">=", bits, zero)',
        'is_positive = builder.icmp_signed("<", bits, zero)',
        ("tests/unit/simt/test_libdevice.py", "tests/unit/simt/test_float16.py"),
    ),
)
NONE = Fault("none", "", "", "", ())


# ---- the table


def with_fault(fault: Fault, root: Path) -> str:
    """The text of a fault's file with the fault in it.

    Raises:
        ValueError: its old code is not there exactly once.
    """
    text = (root / fault.file).read_text(encoding="utf-8")
    if (count := text.count(fault.old)) != 1:
        raise ValueError(
            f"{fault.name}: the old code must be in {fault.file} once, and is there {count} times"
        )
    return text.replace(fault.old, fault.new)


def problems(root: Path = ROOT) -> list[str]:
    """What is wrong with the table: faults that cannot be made, or that change nothing."""
    counts = Counter(fault.name for fault in (NONE, *FAULTS))
    return [f"{name} is there {count} times" for name, count in counts.items() if count > 1] + [
        problem for fault in FAULTS for problem in _problems_of(fault, root)
    ]


def _problems_of(fault: Fault, root: Path) -> Iterator[str]:
    try:
        text = with_fault(fault, root)
        new, old = ast.parse(text), ast.parse((root / fault.file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        yield str(error) if isinstance(error, ValueError) else f"{fault.name}: {error}"
    else:
        if ast.dump(new) == ast.dump(old):
            yield f"{fault.name}: only a comment is changed"
    for path in fault.near:
        # pytest knows --quick by the conftest of tests
        if not path.startswith("tests/") or not (root / path).exists():
            yield f"{fault.name}: there are no tests at {path}"


# ---- one fault


@dataclass(frozen=True)
class Outcome:
    """What came of one fault.

    Attributes:
        name: of the fault.
        file: that it is in.
        found: whether it was found.
        how: "failed", "crashed", "hung" where it was found; "passed"; "error" where pytest could
            not run the tests.
        stage: the run that found it, or the last one: "near" or "rest".
        test: the first test that failed, where one did; else what pytest said, of a crash or an
            error.
        seconds: that it took.
    """

    name: str
    file: str
    found: bool
    how: str
    stage: str
    test: str
    seconds: float

    def __str__(self) -> str:
        """One line."""
        verdict = {"passed": "NOT FOUND", "error": "ERROR"}.get(self.how, f"found ({self.how})")
        return (
            f"{self.name:<40} {verdict:<16} {self.stage:<5} {self.seconds:6.0f} s  {self.test}"
        ).rstrip()


class Stopped(Exception):  # noqa: N818  # nothing is wrong
    """The runner has been asked to end."""


@dataclass(frozen=True)
class Runner:
    """Runs pytest on copies with faults.

    Attributes:
        options: of pytest, for all runs.
        seconds: without an ended test, after which pytest is taken to hang.
        stop: set when all runs are to be broken off.
    """

    options: tuple[str, ...]
    seconds: float
    stop: threading.Event

    def run(self, fault: Fault) -> Outcome:
        """Copies, changes and tests."""
        began = time.monotonic()
        how, stage, test = "passed", "rest", ""
        with _scratch() as folder:
            tree = folder / "tree"
            copy_tracked(ROOT, tree)
            if fault is not NONE:
                (tree / fault.file).write_text(with_fault(fault, tree), encoding="utf-8")
            ignored = [f"--ignore={path}" for path in (OWN_TEST, *fault.near)]
            stages = {"near": list(fault.near), "rest": [*FOLDERS, *ignored]}
            for stage, arguments in stages.items():
                if arguments:
                    how, test = self._pytest(tree, folder / stage, arguments)
                if how != "passed":
                    break
        found = how not in ("passed", "error")
        return Outcome(fault.name, fault.file, found, how, stage, test, _seconds_since(began))

    def _pytest(self, tree: Path, scratch: Path, arguments: Sequence[str]) -> tuple[str, str]:
        """One run; how it ended, and the first failing test."""
        temporary, log = scratch / "tmp", scratch / "log"
        temporary.mkdir(parents=True)
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in {"NUMBA_CACHE_DIR", "PYTEST_ADDOPTS"}
        }
        path = [str(tree), *filter(None, [env.get("PYTHONPATH")])]
        env |= {"PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(temporary), _MARK: str(tree)}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--color=no",
            *self.options,
            *arguments,
        ]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=tree,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = self._wait(process, log)
            finally:
                _kill_all(process, str(tree))
        return _verdict(code, log.read_text(encoding="utf-8", errors="replace"), self.seconds)

    def _wait(self, process: "subprocess.Popen[bytes]", log: Path) -> int | None:
        """The exit code; None if nothing has been written for too long."""
        size, since = 0, time.monotonic()
        while not self.stop.is_set():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(POLL_SECONDS)
            if (now := log.stat().st_size) != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > self.seconds:
                return None
        raise Stopped


def _seconds_since(began: float) -> float:
    return round(time.monotonic() - began, 1)


_FAILED = re.compile(
    r"^(?:FAILED|ERROR) (\S+?\.py(?:::[^\[\s]+?)*(?:\[.*?\])?)(?=: | - |$)", re.MULTILINE
)


def _verdict(code: int | None, output: str, seconds: float) -> tuple[str, str]:
    failed = _FAILED.search(output)
    test = failed[1] if failed else ""
    if code is None:
        return "hung", test or f"no test has ended for {seconds:.0f} s"
    if code in (0, 5):  # 5: of these files no test is left
        return "passed", ""
    if code < 0:
        return "crashed", test or f"pytest was ended by {signal.Signals(-code).name}"
    if code == 1:
        return "failed", test
    last = "\n".join(output.splitlines()[-SHOWN_LINES:])
    return "error", f"pytest exits with {code}:\n{last}"


def copy_tracked(root: Path, target: Path) -> None:
    """Copies the files that git knows, as they are now."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():  # and has not been removed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary directory, which goes whatever tests have done to folders in it."""
    folder = Path(tempfile.mkdtemp(prefix="seeded-"))
    try:
        yield folder
    finally:
        for inside, folders, _ in os.walk(folder):
            for name in folders:
                place = Path(inside, name)
                if not place.is_symlink():  # which may lead elsewhere
                    place.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


_MARK = "SYNKNUMBA_SEEDED"  # in the environment of all that a run starts


def _kill_all(process: "subprocess.Popen[bytes]", mark: str) -> None:
    """Ends pytest and all that it has started, also what is in sessions of its own by now."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wanted = f"{_MARK}={mark}".encode()
    for _ in range(10):  # what is being killed may have started something else
        found = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/environ")
            if _has(path, wanted)
        ]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(POLL_SECONDS)


def _has(path: Path, wanted: bytes) -> bool:
    with suppress(OSError):  # it has ended, or is somebody else's
        return wanted in path.read_bytes().split(b"\0")
    return False


# ---- all of them


def run_all(
    runner: Runner, faults: Sequence[Fault], jobs: int, told: Callable[[Outcome], None]
) -> None:
    """Tests the faults; each outcome is told when it is known."""
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(runner.run, fault) for fault in faults]
        try:
            for future in as_completed(futures):
                told(future.result())
        except BaseException:
            runner.stop.set()
            for future in futures:
                future.cancel()
            raise


def summary(outcomes: Sequence[Outcome], suite: str, seconds: float) -> str:
    """One line about all."""
    of = (
        f"{sum(one.found for one in outcomes)} of {len(outcomes)} faults found by the {suite} "
        f"suite in {seconds:.0f} s"
    )
    others = {"not found": "passed", "could not be tested": "error"}
    told = {what: [one.name for one in outcomes if one.how == how] for what, how in others.items()}
    return "; ".join(
        [of, *(f"{what}: {', '.join(names)}" for what, names in told.items() if names)]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    known = {fault.name: fault for fault in (NONE, *FAULTS)}
    parser = argparse.ArgumentParser(
        prog="python -m tests.seeded", description="Sees whether the tests find seeded faults."
    )
    parser.add_argument(
        "--check", action="store_true", help="only see whether all faults can be made"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="faults that are tested at the same time"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[one.name for one in FAULTS],
        choices=known,
        metavar="NAME",
        help="of faults",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="to write the outcomes to")
    parser.add_argument(
        "--seconds",
        type=float,
        default=900.0,
        metavar="LIMIT",
        help="without an ended test, for a hang",
    )
    parser.add_argument(
        "--whole", action="store_true", help="the whole suite instead of the quick one"
    )
    options = parser.parse_args(arguments)
    asked = [known[name] for name in dict.fromkeys(options.only)]
    found = (
        problems()
        if options.check
        else [problem for one in asked if one is not NONE for problem in _problems_of(one, ROOT)]
    )
    if options.check or found:
        print("\n".join(found) or f"all {len(FAULTS)} faults can be made")
        return 1 if found else 0

    suite = "whole" if options.whole else "quick"
    began = time.monotonic()
    outcomes: list[Outcome] = []

    def told(outcome: Outcome) -> None:
        print(outcome, flush=True)
        outcomes.append(outcome)
        if options.json:  # after each, so that what is known is there if the rest is broken off
            report = {
                "suite": suite,
                "seconds": _seconds_since(began),
                "faults": [asdict(one) for one in outcomes],
            }
            options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    runner = Runner(() if options.whole else ("--quick",), options.seconds, threading.Event())
    run_all(runner, asked, options.jobs, told)
    print(summary(outcomes, suite, _seconds_since(began)))
    return 0 if all(one.found for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
