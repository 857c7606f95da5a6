"""What a referee is asked to run: one entry on one seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from trueloop.core.untrusted_input import Bounds
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.trial import SEED_BOUND

SEEDS: Final = 5
"""For each entry; enough for a median that one lucky draw does not move."""
CPU_S: Final = 60
"""Seconds of a core that one job may take; the slowest entry that is allowed takes a quarter of it."""
WALL_S: Final = 240.0
"""Seconds by the clock, where other programs take their share of the machine."""
MISSES: Final = 2
"""Seeds without reaching the target after which the others are not run: the entry is not ranked anyway."""
ROOM_MIB: Final = 512
"""Memory that a job may add to what torch itself takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of an entry."""

    id: Annotated[int, Bounds(0, 1e12)]
    track: Annotated[str, Bounds(1, 32)]
    entry: Entry
    seed: Annotated[int, Bounds(0, SEED_BOUND)]
    practice: bool = False
    """Judged by the first held-out split alone."""
    once: bool = False
    """Watched, but neither repeated nor timed."""
