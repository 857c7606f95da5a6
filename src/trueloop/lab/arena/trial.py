"""Jobs of the judge and their results: one run of an entry on one seed."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal

from trueloop.core.untrusted_input import Bounds
from trueloop.lab.arena.entry import Entry

SEEDS: Final = 5
"""Number of seeds per entry: enough for a median that one lucky seed does not change."""
MAX_CPU_S: Final = 60
"""Limit of CPU seconds per job; the slowest allowed entry takes a quarter of this."""
MAX_WALL_S: Final = 240.0
"""Limit of wall-clock seconds per job, for a busy machine."""
MAX_MISSES: Final = 2
"""Number of missed seeds after which the other seeds are skipped, because the entry is unranked in any case."""
MAX_EXTRA_MIB: Final = 512
"""Limit in MiB of a job's memory, in addition to the memory of torch itself."""
MAX_POINTS: Final = 200
"""Maximum number of points of a stored curve."""
MAX_SEED: Final = 2**31
"""Largest seed."""

Point = tuple[int, int, float]
"""Number of the update, number of examples so far, held-out accuracy after the update."""
CurveCallback = Callable[[list[Point]], None]
"""Function that is called with the new points of the curve, and with an empty list when the script runs again."""

_Text = Annotated[str, Bounds(0, 100_000)]
_Count = Annotated[int, Bounds(0, 1e12)]
_Number = Annotated[float, Bounds(-1e300, 1e300)]


class End(StrEnum):
    """How a run ended."""

    REACHED = "reached"
    NOT_REACHED = "not reached"
    FOUND = "found"
    """The sanitizer reported a finding of severity warning or error."""
    STOPPED = "stopped"
    """The run exceeded the limit of time or memory."""
    FAILED = "failed"
    """The run raised an error, could not be checked, or had a different result the second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinding:
    """A finding of the sanitizer of severity warning or error."""

    code: _Text
    title: _Text
    severity: _Text
    message: _Text
    line: _Count = 0
    """Line of the script; 0 if the finding has none."""
    fix: _Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of an entry, on one seed."""

    seed: Annotated[int, Bounds(0, MAX_SEED)]
    end: Literal["reached", "not reached", "found", "stopped", "failed"]
    updates: _Count = 0
    """Number of updates until the target or the end; 0 if the process was killed."""
    examples: _Count = 0
    accuracy: _Number = 0.0
    """Last accuracy on the first held-out split."""
    time: _Number | None = None
    """Training time per example relative to the track's reference loop; None if not measured."""
    step_ms: _Number | None = None
    """CPU time of one update without the sanitizer and without evaluation, in ms; None if not measured."""
    memory_mib: _Number | None = None
    """Peak memory of the process in the run without the sanitizer, above that at its fork; None if unknown."""
    digest: _Text = ""
    """Digest of the final weights, which a replay reproduces."""
    found: TrialFinding | None = None
    why: _Text = ""
    """Reason for stopping or failing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of an entry."""

    id: Annotated[int, Bounds(0, 1e12)]
    track: Annotated[str, Bounds(1, 32)]
    entry: Entry
    seed: Annotated[int, Bounds(0, MAX_SEED)]
    practice: bool = False
    """True to use only the first held-out split."""
    without_timing: bool = False
    """True to run only under the sanitizer, without a second, timed run."""


def thin_points(points: list[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Thin a curve evenly, keeping the first and the last point."""
    if len(points) <= limit:
        return points
    last = len(points) - 1
    return [points[round(k * last / (limit - 1))] for k in range(limit)]
