"""Numbers as people read them: counts, sizes in memory, and a noun that agrees with its count."""

from __future__ import annotations


def number(count: int) -> str:
    """Write a count; from a million on with separators, since up to six digits read at a glance."""
    return f"{count:,}" if abs(count) >= 1_000_000 else str(count)


def counted(count: int, noun: str) -> str:
    """Write a count with its noun: "1 update", "79 updates", "3 epochs", "3 batches", "2 processes"."""
    plural = "es" if noun.endswith(("s", "tch")) else "s"
    return f"{number(count)} {noun}{'' if count == 1 else plural}"


def size(count_bytes: int) -> str:
    """Write a size in memory in binary units: "512 bytes", "96.0 KiB", "1.5 GiB"."""
    if count_bytes < 1024:
        return counted(count_bytes, "byte")
    value, unit = float(count_bytes), "bytes"
    for unit in ("KiB", "MiB", "GiB", "TiB"):  # noqa: B007  # the unit reached is what is printed
        value /= 1024
        if value < 1024:
            break
    return f"{value:,.1f} {unit}"
