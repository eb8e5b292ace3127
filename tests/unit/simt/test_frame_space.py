"""Loops at the end of a chunk of CPython's frames."""

import resource

from synknumba.simt.internals import with_frame_space

CALLS = 200


def leaf() -> None:
    pass


def faults_at(depth: int) -> int:
    """Pages that the system hands out during a loop of calls, this many calls deep."""
    if depth:
        return faults_at(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@with_frame_space
def most_faults() -> int:
    return max(faults_at(depth) for depth in range(300))


def test_no_depth_gets_a_page_for_each_call():
    assert most_faults() < CALLS / 2


def test_arguments_results_and_errors_pass():
    assert with_frame_space(divmod)(7, 2) == (3, 1)
    assert with_frame_space(int)("ff", base=16) == 255
    assert with_frame_space(leaf).__name__ == "leaf"
