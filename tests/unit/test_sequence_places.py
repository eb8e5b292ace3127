"""Where a rank is in a sequence, from the words that it stores, in words."""

from dataclasses import replace

import pytest

from synknumba._wire.program import HostArray
from synknumba._wire.sequence import (
    LINE,
    NOT_BEGUN,
    Access,
    BodyLines,
    Loop,
    Part,
    SequenceProgram,
    path_to,
    place_text,
    shown_path,
)

A, B, C, D = (Part(number, name, number + 1, Access()) for number, name in enumerate("abcd"))
DEEP = Loop("deep", ("scalar", 0), 2, (C, D))
INNER = Loop("inner", ("value", 4), 1, (B, DEEP))
PROGRAM = SequenceProgram(9, "loop", (A, INNER), "q", 0, HostArray(0, None, ()), 0)
EMPTY = SequenceProgram(9, "loop", (), "", 0, HostArray(0, None, ()), 0)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ([NOT_BEGUN], "before the first iteration of loop"),
        ([5], "in iteration 5 of 10 of loop, call 1: a"),
        ([5, 1], "in iteration 5 of 10 of loop, a call of inner"),  # compiled code shows no more
        ([5, 1, 1, 3], "in iteration 5 of 10 of loop, iteration 3 of 4 of inner, call 2: b"),
        ([5, 1, 2, 3], "in iteration 5 of 10 of loop, iteration 3 of 4 of inner, a call of deep"),
        (
            [5, 1, 2, 3, 2, 6],
            "in iteration 5 of 10 of loop, iteration 3 of 4 of inner, "
            "iteration 6 of deep, call 4: d",
        ),
        ([6, 2], "in iteration 6 of 10 of loop, call 1: a"),  # compiled code has begun an iteration
    ],
)
def test_words_that_a_rank_shows(words, place):
    assert place_text(PROGRAM, 10, shown_path([*words, *[0] * (LINE - len(words))])) == place


def test_the_line_of_the_body():
    program = replace(PROGRAM, lines=BodyLines(calls={1: "steps.py:7", 4: "inner.py:3"}))
    assert (
        place_text(program, 10, [(5, 0)]) == "in iteration 5 of 10 of loop, call 1: a (steps.py:7)"
    )
    assert place_text(program, 10, [(5, 1), (3, 0)]).endswith(
        "iteration 3 of 4 of inner, call 2: b"
    )
    assert place_text(program, 10, [(5, 1), (3, 1), (6, 1)]).endswith(
        "iteration 6 of deep, call 4: d (inner.py:3)"
    )


def test_a_sequence_without_calls():
    assert place_text(EMPTY, 3, shown_path([2] + [0] * 7)) == "in iteration 2 of 3 of loop"
    # the part is not known
    assert place_text(PROGRAM, 3, [(2, -1)]) == "in iteration 2 of 3 of loop"


def test_paths_of_parts():
    assert [path_to(part, PROGRAM.parts) for part in (A, B, C, D)] == [
        (0,),
        (1, 0),
        (1, 1, 0),
        (1, 1, 1),
    ]
    assert path_to(Part(0, "a", 1, Access()), PROGRAM.parts) == ()
