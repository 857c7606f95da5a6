"""What a journal holds, as people read it: a few significant digits, a duration in its natural unit, a safe name."""

from __future__ import annotations

import math


def short(value: float, digits: int = 3) -> str:
    """Write a number with so many significant digits: "0.213", "12.3", "1234", "9.20e-04", "nan"."""
    if not math.isfinite(value):
        return str(float(value))
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -3 or exponent > 5:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def duration(seconds: float) -> str:
    """Write a duration: "0.42 s", "12.3 s", "3 min 05 s", "2 h 03 min", "4 d 07 h"."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h:02d} h"
    return f"{hours} h {m:02d} min" if hours else f"{minutes} min {s:02d} s"


def printable(name: str) -> str:
    """Replace what would steer a terminal or break a document (escape, newline, lone surrogate) by "\ufffd"."""
    return name if name.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in name)
