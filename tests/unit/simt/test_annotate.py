"""Findings of `simt.check` at the lines of the source."""

import linecache
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda

from synknumba import simt
from synknumba._errors import ArgumentError


@cuda.jit(device=True)
def shifted(x, i):
    return x[i + 1]  # too far


@cuda.jit
def kernel(x, out):
    s = cuda.shared.array(8, np.float64)
    t = cuda.threadIdx.x
    s[t] = x[t] * 2 if x[t] < 4 else 0.0
    out[t] = s[7 - t] + shifted(x, t)


def found() -> simt.KernelCheckError:
    with pytest.raises(simt.KernelCheckError) as caught:
        simt.check(kernel)[1, 8](np.arange(8.0), np.zeros(8))
    return caught.value


def test_text_has_each_finding_below_its_line() -> None:
    error = found()
    lines = str(simt.annotate(error)).splitlines()
    source = Path(__file__).read_text().splitlines()
    for number, finding in enumerate(error.findings, 1):
        for access in finding.accesses:
            at = next(k for k, line in enumerate(lines) if re.match(rf"> +{access.line} \|", line))
            assert lines[at].endswith(source[access.line - 1])
            below = [line.partition("|")[2] for line in lines[at + 1 :]]
            notes = "\n".join(
                below[
                    : next(
                        (
                            k
                            for k, line in enumerate(lines[at + 1 :])
                            if not line.startswith("    ")
                        ),
                        None,
                    )
                ]
            )
            assert f"[{number}]" in notes
        assert sum(finding.summary in line for line in lines) == 1
        assert sum(finding.advice in line for line in lines) >= 1
    assert lines[0] == f"kernel ({__file__})"
    assert f"shifted ({__file__})" in lines
    assert "\x1b" not in str(simt.annotate(error))
    assert re.sub(r"\x1b\[[\d;]*m", "", simt.annotate(error).text(colour=True)) == str(
        simt.annotate(error)
    )


class Text(HTMLParser):
    """The text of a page; fails where a tag is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.stack: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        del attrs
        if tag != "meta":
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_has_the_same_and_is_escaped() -> None:
    annotated = simt.annotate(found())
    parser = Text()
    parser.feed(annotated.page())
    assert not parser.stack
    text = "".join(parser.texts)
    for finding in found().findings:
        assert finding.summary in text
    assert "x[t] < 4" in text
    assert "x[t] < 4" not in annotated.html()
    assert annotated._repr_html_() == annotated.html()
    assert repr(annotated) == f"<{len(found().findings)} findings in kernel, shifted>"


def test_a_long_function_is_shown_around_the_findings() -> None:
    text = (
        "def long(x):\n    i = cuda.grid(1)\n"
        + "    i += 0\n" * 60
        + "    x[i + 1] = 1\n"
        + "    i += 0\n" * 20
    )
    linecache.cache["<long>"] = (len(text), None, text.splitlines(keepends=True), "<long>")
    scope: dict[str, Any] = {"cuda": cuda}
    exec(compile(text, "<long>", "exec"), scope)
    with pytest.raises(simt.BoundsError) as caught:
        simt.check(scope["long"])[1, 4](np.zeros(4))
    shown = str(simt.annotate(caught.value)).splitlines()
    numbers = [int(match[1]) for line in shown if (match := re.match(r"[> ] +(\d+) \|", line))]
    assert numbers == [1, 60, 61, 62, 63, 64, 65, 66]
    assert any(line.endswith("…") for line in shown)


def test_what_is_no_finding_is_refused_with_what_to_pass() -> None:
    for given in (
        kernel,
        simt.jit(lambda x: None),
        None,
        ValueError("x"),
        "text",
        [1],
        [found().findings],
    ):
        with pytest.raises(ArgumentError, match=re.escape(f"got {given!r}")) as caught:
            simt.annotate(given)
        assert "simt.check(kernel)[grid, block]" in str(caught.value)
    assert str(simt.annotate(iter(found().findings))) == str(simt.annotate(found()))
