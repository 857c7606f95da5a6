"""Format numbers, units and names for messages."""

import difflib
import math
from collections.abc import Iterable, Sequence


def format_number(count: int) -> str:
    """Format an integer, with thousands separators from a million on."""
    return f"{count:,}" if abs(count) >= 1_000_000 else str(count)


def format_count(count: int, noun: str) -> str:
    """Format a count with its noun: "1 update", "79 updates", "3 epochs", "3 batches", "2 indexes"."""
    plural = "es" if noun.endswith(("s", "x", "tch")) else "s"
    return f"{format_number(count)} {noun}{'' if count == 1 else plural}"


def first_few(names: Sequence[str]) -> str:
    """Join the first three names: "a, b, c, ..."."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def did_you_mean(word: str, choices: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return "Did you mean 'lr'? " for the choice most similar to a word; "" if no choice is similar.

    Args:
        word: the word that is not among the choices.
        choices: the valid words.
        cutoff: least similarity, from 0 to 1, as computed by `difflib.SequenceMatcher`.
    """
    similar = difflib.get_close_matches(word, list(choices), n=1, cutoff=cutoff)
    return f"Did you mean {similar[0]!r}? " if similar else ""


def format_size(count_bytes: int) -> str:
    """Format a size in binary units: "512 bytes", "96.0 KiB", "1.5 GiB"."""
    if count_bytes < 1024:
        return format_count(count_bytes, "byte")
    value, unit = float(count_bytes), "bytes"
    for unit in ("KiB", "MiB", "GiB", "TiB"):  # noqa: B007  # printed after the loop
        value /= 1024
        if value < 1024:
            break
    return f"{value:,.1f} {unit}"


def format_float(value: float, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits: "0.213", "12.3", "1234", "9.20e-04", "nan"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -3 or exponent > 5:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def format_duration(seconds: float) -> str:
    """Format a duration: "410 µs", "3.40 ms", "12.3 s", "3 min 05 s", "2 h 03 min", "4 d 07 h"."""
    if not math.isfinite(seconds):
        return f"{seconds:g} s"
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{format_float(seconds * 1e6)} µs" if seconds < 0.9995e-3 else f"{format_float(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days} d {h:02d} h"
    return f"{hours} h {m:02d} min" if hours else f"{minutes} min {s:02d} s"


def format_percent(share: float) -> str:
    """Format a fraction in [0, 1] as a percentage: "41 %", "1.4 %", "0.86 %", "0 %"."""
    value = 100 * share
    if 0 < value < 0.01:
        return "below 0.01 %"
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.2g} %"


def replace_unprintable(text: str) -> str:
    """Replace every unprintable character (escape, newline, lone surrogate) by "\ufffd"."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "\ufffd" for char in text)


def to_single_line(text: str) -> str:
    """Join the lines of a text into one and replace unprintable characters."""
    return replace_unprintable(" ".join(text.split()))
