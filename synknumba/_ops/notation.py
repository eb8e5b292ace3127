"""How means and standard errors are written: 0.19877(12) for 0.19877 ± 0.00012."""

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np


def text(mean: Any, stderr: Any, write: Callable[[float, float], str] | None = None) -> str:
    """Writes one value, or several in brackets; by default in concise notation."""
    write = write or concise
    if not np.ndim(mean):
        return write(float(mean), float(stderr))
    return f"[{', '.join(map(write, mean.tolist(), stderr.tolist()))}]"


def formatted(mean: Any, stderr: Any, spec: str) -> str:
    """Applies a format of floats to means and standard errors, any other to the text."""
    if re.search(r"\.\d|[eEfFgGn%]$", spec):
        return text(mean, stderr, lambda value, error: f"{value:{spec}} ± {error:{spec}}")
    return format(text(mean, stderr), spec)


def concise(mean: float, stderr: float) -> str:
    """Formats mean and standard error with two digits of the error, as in CODATA's tables.

    >>> concise(0.198773, 0.000123), concise(12.345, 1.26), concise(123456.0, 2340.0), concise(1 / 3, math.nan)
    ('0.19877(12)', '12.3(1.3)', '1.235(23)e+05', '0.333333(nan)')
    """  # noqa: E501
    if math.isnan(stderr):
        return f"{mean:.6g}(nan)"  # nothing says how many digits are significant
    if not (math.isfinite(mean) and math.isfinite(stderr) and stderr > 0):
        return f"{mean:.12g}({stderr:.2g})"
    last = int(f"{stderr:.1e}".split("e")[1]) - 1  # the power of ten of the error's second digit
    first = last
    if mean:
        first = max(math.floor(math.log10(abs(mean))), last)
    if last <= 0 and first >= -4:
        error = f"{stderr:.{-last}f}"
        if last >= 0 or stderr < 1:
            error = error.replace(".", "").lstrip("0")
        return f"{mean:.{-last}f}({error})"
    power = max(first, last + 1)
    if power == last + 1:
        digits = f"{Decimal(stderr).scaleb(-power):.1f}"
    else:
        digits = f"{Decimal(stderr).scaleb(-last):.0f}"
    return f"{Decimal(mean).scaleb(-power):.{power - last}f}({digits})e{power:+03d}"
