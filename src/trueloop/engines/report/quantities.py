"""Numbers, times and names as people read them in a report."""

from __future__ import annotations

import math
from pathlib import Path

from trueloop.ground.findings import Finding
from trueloop.ground.words import number


def short(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits: "0.213", "12.3", "1234", "9.20e-04", "nan"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -3 or exponent > 5:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def duration(seconds: float) -> str:
    """Write a duration: "410 µs", "3.40 ms", "12.3 s", "3 min 05 s", "2 h 03 min"."""
    for unit, factor in (("µs", 1e6), ("ms", 1e3), ("s", 1.0)):
        if seconds * factor < (1000 if unit != "s" else 60):
            return f"{short(seconds * factor)} {unit}" if seconds > 0 else "0 s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02d} min" if hours else f"{minutes} min {rest_s:02d} s"


def percent(share: float) -> str:
    """Write a share: "41 %", "1.4 %", "0.86 %", "0 %"."""
    value = 100 * share
    if 0 < value < 0.01:
        return "below 0.01 %"
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.2g} %"


def printable(text: str) -> str:
    """Replace what would steer a terminal or break a document (escape, newline, lone surrogate) by "\ufffd"."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def sentence(text: str) -> str:
    """Bring a text of several lines into one, without anything that is not printable."""
    return printable(" ".join(text.split()))


def shown(path: str, base: Path | None) -> str:
    """Write a path as people open it: relative to the folder they are in, where it lies there."""
    known = Path(path)
    return printable(str(known.relative_to(base) if base and known.is_relative_to(base) else known))


def when(finding: Finding) -> str:
    """Say since when, and how often: "since update 1, 1199 times"; "" where the text alone was read."""
    if finding.first_update is None:
        return f"{number(finding.count)} times" if finding.count > 1 else ""
    update = number(finding.first_update)
    return f"since update {update}, {number(finding.count)} times" if finding.count > 1 else f"at update {update}"
