"""Failures outside the fault matrix, with what the script sees and the tests that cause them: a
section of docs/evidence/reliability.md.

A test is named by its path below `tests` and by its function, behind a class if it is in one.
"""

from typing import NamedTuple


class Further(NamedTuple):
    """One row of the table."""

    what: str
    seen: str
    tests: tuple[str, ...]


HEAD = """## Further faults

Failures of the script's environment, and of programs that do something unusual. Each has a test, named by its path in tests/:

| what happens | what the script sees | test |
|---|---|---|
"""  # noqa: E501

FURTHER = (
    Further(
        "the script's file is edited between its start and a kernel's first call",
        "nothing; kernels run the text with which they were defined",
        ("faults/test_edited_scripts.py::test_runs_as_it_was_started",),
    ),
    Further(
        "`NUMBA_CACHE_DIR` holds pickles of others",
        "nothing; an import reads compiled functions from the package's own checked store only",
        ("faults/test_security.py::test_an_import_reads_no_cache_of_numbas",),
    ),
    Further(
        "files of the cache are damaged, or larger than the memory",
        "nothing; they are compiled and written anew",
        (
            "faults/test_security.py::test_damaged_files_of_compiled_functions_are_replaced",
            "unit/simt/test_cache.py::TestStore::test_what_is_not_ours_or_not_whole",
        ),
    ),
    Further(
        "the directory of the cache cannot be looked at, as that of another user",
        "nothing; it is not used",
        ("faults/test_security.py::test_a_directory_that_cannot_be_looked_at_is_done_without",),
    ),
    Further(
        "a FIFO is in the place of a cached kernel",
        "nothing; it is not read, which would wait for a writer, and the kernel is compiled",
        ("unit/simt/test_cache.py::TestStore::test_what_is_not_ours_or_not_whole",),
    ),
    Further(
        "a thread makes `Data` while another one calls `fork()`",
        "nothing; ranks can use the `Data`",
        ("faults/test_other_processes.py::test_data_that_other_threads_make_during_a_fork",),
    ),
    Further(
        "a thread compiles with Numba while another one calls `fork()`",
        "nothing; the fork waits for the compilation, at most 30 s",
        ("faults/test_other_processes.py::test_a_thread_that_compiles_during_the_fork",),
    ),
    Further(
        "Ctrl-C while the memory of dropped `Data` is freed",
        "`KeyboardInterrupt`; a finalizer only notes what is to be freed, "
        "and the next call frees it",
        ("faults/test_matrix.py::test_fault[SIGINT-dropping_data-coordinator-W1]",),
    ),
    Further(
        "Ctrl-C when the ranks of a `fork()` have just started, or two in a row",
        "`KeyboardInterrupt`; the world ends with the `fork()`, or by `close()`",
        ("faults/test_interrupts_of_taking.py::test_struck_when_the_ranks_have_started",),
    ),
    Further(
        "Ctrl-C in the middle of `synk.swap(u, v)`, or while a sequence with swaps is recorded",
        "`KeyboardInterrupt`; both variables are swapped, or neither",
        ("faults/test_interrupts_of_swaps.py::test_struck_at_every_moment",),
    ),
    Further(
        "a rank raises inside a sequence, between two steps of a collective, and Ctrl-C comes "
        "while the script handles it",
        "`RankError`, then `KeyboardInterrupt`; the next call of the sequence is right",
        ("faults/test_sequence_faults.py::test_right_after_a_rank_has_failed_anywhere",),
    ),
    Further(
        "a rank dies or raises, Ctrl-C or the time limit comes, in a loop with `until=` that the "
        "ranks judge",
        "`RankDied`, `RankError`, `KeyboardInterrupt` or `CallTimeout`, with the iteration; the "
        "next call is right",
        (
            "faults/test_sequence_faults.py::test_a_rank_is_killed_in_a_loop",
            "faults/test_sequence_faults.py::test_a_rank_dies_while_the_other_waits_for_it",
            "faults/test_sequence_faults.py::test_right_after_a_rank_has_failed_in_a_judged_loop",
            "faults/test_sequence_faults.py::test_a_time_limit_ends_a_loop",
            "faults/test_sequence_faults.py::test_an_interrupt_ends_a_loop",
        ),
    ),
    Further(
        "functions on ranks start processes, and the world or a rank ends",
        "nothing; the processes end with their rank",
        (
            "faults/test_other_processes.py::test_processes_that_functions_start_end_with_their_rank",
        ),
    ),
    Further(
        "`f(d, d.data)` where both parameters are in `inout=`, also in one tree or in a sequence",
        "`ArgumentError`, before anything is sent",
        (
            "unit/test_bad_input.py::test_data_and_a_view_of_it_that_are_both_written",
            "unit/test_bad_input.py::test_data_and_a_view_of_it_that_are_both_written_in_one_argument",
            "unit/test_bad_input.py::test_memory_that_a_sequence_writes_twice",
        ),
    ),
    Further(
        "the machine is suspended during a call, also one in flight",
        "nothing; the time does not count for `timeout`",
        ("faults/test_timeouts.py::test_time_in_which_the_machine_slept_does_not_count",),
    ),
    Further(
        "the script crashes and writes a core file",
        "a core file without the contents of `Data`",
        ("unit/test_shm.py::test_core_files_do_not_hold_segments",),
    ),
    Further(
        "`NUMBA_DISABLE_JIT=1`",
        "`DeviceError` from `fork()`, `KernelError` from kernels; both say to unset it",
        ("unit/test_starting.py::test_without_numbas_compiler",),
    ),
    Further(
        "the soft limit of open files is too low for the ranks",
        "nothing; it is raised up to the hard limit",
        ("faults/test_hardening.py::test_a_low_soft_limit_of_open_files_is_raised",),
    ),
    Further(
        "there are too few descriptors to start the ranks",
        "`OSError` or `WorldError`; both name the limit of open files",
        ("faults/test_shortages.py::test_too_few_descriptors_to_start_ranks",),
    ),
    Further(
        "a rank has no memory left, not even to pickle its `MemoryError`",
        "`RankError` with the `MemoryError`; the rank frees a reserve for it",
        ("faults/test_shortages.py::test_a_rank_that_has_no_memory_left_to_pickle_its_error",),
    ),
    Further(
        "there is no memory for a rank to start in, so that it fails at its first call",
        "`RankDied`, `MemoryError` or `OSError`; the rank ends, and does not run on "
        "in its copy of the script",
        (
            "faults/test_shortages.py::test_a_rank_without_memory_to_start_does_not_run_on_in_the_script",
            "faults/test_hygiene.py::test_what_is_raised_in_a_child_stays_there",
        ),
    ),
    Further(
        "`fork()` or `close()` while another thread's call starts the ranks of an ended world "
        "again",
        "`fork()`: `WorldError`; `close()` waits for the start, and ends the world",
        (
            "faults/test_respawn.py::test_close_and_fork_while_another_thread_starts_the_ranks_again",
        ),
    ),
    Further(
        "SIGKILL or a crash ends the process that asks the NVIDIA driver for GPUs",
        "`DeviceError`, or the warning that cores are used, with the signal",
        ("unit/test_probe.py::test_a_driver_that_crashes",),
    ),
    Further(
        "the script changes its user after `fork()`",
        "nothing; it still ends its ranks, by their lifelines",
        (
            "faults/test_other_processes.py::test_a_script_that_becomes_another_user_still_ends_its_ranks",
        ),
    ),
    Further(
        "`/dev/shm` is read-only or missing",
        "nothing; shared memory comes from `memfd_create`",
        ("unit/test_makers.py::test_without_a_dev_shm",),
    ),
    Further(
        "an array of NumPy's `StringDType` is passed",
        "`DataError` at each call; it asks for a dtype of fixed size",
        ("conformance/test_masks_and_texts.py::test_texts_of_any_length_are_refused_at_each_call",),
    ),
    Further(
        "`synk.arange(2**63)`, whose sums int64 cannot hold",
        "`ArgumentError`; at most 2**62",
        ("unit/test_bad_input.py::test_a_bad_arange",),
    ),
    Further(
        "a seccomp filter refuses system calls, or `/proc` is not mounted",
        "nothing, or `WorldError` or `SharedMemoryError` with the system call that is needed",
        (
            "faults/test_sandboxes.py::test_a_world_does_without_what_a_sandbox_refuses",
            "faults/test_sandboxes.py::test_shared_memory_refused_where_there_is_no_other",
            "faults/test_sandboxes.py::test_a_call_that_a_rank_cannot_do_without_is_named",
            "faults/test_sandboxes.py::test_a_world_where_proc_is_not_mounted",
        ),
    ),
    Further(
        "the reader of stdout has closed, as in `python script.py \\| head -1`",
        "`RankError` from `BrokenPipeError` at each call whose function prints; nothing "
        "with `prefix_output=True`",
        (
            "test_diagnosis_page.py::test_a_closed_reader_is_an_error_of_each_call_that_prints",
            "test_diagnosis_page.py::test_a_closed_reader_of_output_with_prefixes_is_no_error",
        ),
    ),
    Further(
        "`%autoreload` changes a function in place after the ranks got it",
        "`WorldError`: call `close()` and `fork()` again",
        ("unit/test_changed_code.py::test_the_function_itself",),
    ),
    Further(
        "a decorated function is pickled for another process",
        "nothing; it is pickled by reference, and `ArgumentError` if no "
        "module has it under its name",
        (
            "unit/test_pickled_functions.py::test_by_reference",
            "unit/test_pickled_functions.py::test_of_no_place",
        ),
    ),
)


def section() -> str:
    """The section with its table."""
    rows = (
        f"| {row.what} | {row.seen} | {', '.join(f'`{test}`' for test in row.tests)} |\n"
        for row in FURTHER
    )
    return f"{HEAD}{''.join(rows)}"
