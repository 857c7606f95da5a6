"""What came out of one run of an entry, on one seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal

from trueloop.core.untrusted_input import Bounds
from trueloop.lab.arena.entry import Entry

SEEDS: Final = 5
"""For each entry; enough for a median that one lucky draw does not move."""
MAX_CPU_S: Final = 60
"""Seconds of a core that one job may take; the slowest entry that is allowed takes a quarter of it."""
MAX_WALL_S: Final = 240.0
"""Seconds by the clock, where other programs take their share of the machine."""
MAX_MISSES: Final = 2
"""Seeds without reaching the target after which the others are not run: the entry is not ranked anyway."""
MAX_EXTRA_MIB: Final = 512
"""Memory that a job may add to what torch itself takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of an entry."""

    id: Annotated[int, Bounds(0, 1e12)]
    track: Annotated[str, Bounds(1, 32)]
    entry: Entry
    seed: Annotated[int, Bounds(0, MAX_SEED)]
    practice: bool = False
    """Judged by the first held-out split alone."""
    once: bool = False
    """Watched, but neither repeated nor timed."""


MAX_POINTS: Final = 200
"""Of a curve, at most, once it is kept."""
MAX_SEED: Final = 2**31
"""No seed is above it."""

Point = tuple[int, int, float]
"""Update, examples by then, held-out accuracy after it."""

_Text = Annotated[str, Bounds(0, 100_000)]
_Count = Annotated[int, Bounds(0, 1e12)]
_Number = Annotated[float, Bounds(-1e300, 1e300)]


class End(StrEnum):
    """How a run ended."""

    REACHED = "reached"
    NOT_REACHED = "not reached"
    FOUND = "found"
    """The sanitizer found something of severity warning or error."""
    STOPPED = "stopped"
    """It took more time or memory than a run may."""
    FAILED = "failed"
    """It raised, could not be watched, or came out otherwise the second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the sanitizer found, of severity warning or error."""

    code: _Text
    title: _Text
    severity: _Text
    message: _Text
    line: _Count = 0
    """Of the script; 0 where it is at none."""
    fix: _Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of an entry, on one seed."""

    seed: Annotated[int, Bounds(0, MAX_SEED)]
    end: Literal["reached", "not reached", "found", "stopped", "failed"]
    updates: _Count = 0
    """Updates to the target, or to where it ended; 0 where it was cut short from outside."""
    examples: _Count = 0
    accuracy: _Number = 0.0
    """The last one on the first held-out split."""
    time: _Number | None = None
    """Training time per example, in that of the track's reference loop; None where it was not measured."""
    digest: _Text = ""
    """Of the weights at the end: a replay comes to the same."""
    found: Found | None = None
    why: _Text = ""
    """What stopped it, or went wrong."""


def thin_points(points: list[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Leave out points of a curve evenly, but neither the first nor the last one."""
    if len(points) <= limit:
        return points
    last = len(points) - 1
    return [points[round(k * last / (limit - 1))] for k in range(limit)]
