"""What a check is, what it is asked for, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from trueloop.doctor.machine import Machine

Group = Literal["software", "accelerator", "processor", "memory", "disk", "numbers", "output"]

PREFETCH: Final = 2  # batches that torch's DataLoader keeps ready for each worker, unless it is told otherwise


class Level(StrEnum):
    """How a run would fare."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """A run would be slow, or fragile, or not what was meant."""
    ERROR = "error"
    """A run would fail."""
    UNKNOWN = "unknown"
    """It cannot be told here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What one check found."""

    level: Level
    message: str
    """One or two sentences with the numbers."""
    remedy: str = ""
    """What to do; for every warning and error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a run would ask of the machine. None = not known."""

    device: str = "auto"
    processes: int = 1
    """On this machine."""
    workers: int | None = None
    """Loader processes for each of them; None = chosen when the run starts."""
    batch_bytes: int | None = None
    """Of one micro-batch, as the loader hands it over."""
    checkpoint_bytes: int | None = None
    checkpoints: int = 4
    """That lie on the disk at once: kept ones, and the one being written."""
    threads: int | None = None
    """Within one operation; None = as torch has it."""
    deterministic: bool = False

    @property
    def in_flight_bytes(self) -> int | None:
        """Shared memory that batches take on their way from workers; None where batch or workers are not known.

        Source: torch.utils.data.DataLoader, prefetch_factor: so many for each worker, and one being trained on.
        """
        if self.workers is None or self.batch_bytes is None:
            return None
        return self.processes * (self.workers * PREFETCH + 1) * self.batch_bytes if self.workers else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that is looked at; its name is its file's."""

    title: str
    group: Group
    look: Callable[[Machine, Need], Diagnosis | None]
    """None = it does not concern this machine, or this run."""
    failure: str = ""
    """Code of the catalogue's page that tells more."""


def ok(message: str) -> Diagnosis:
    """Nothing is wrong."""
    return Diagnosis(level=Level.OK, message=message)


def note(message: str, remedy: str = "") -> Diagnosis:
    """Something is worth knowing."""
    return Diagnosis(level=Level.NOTE, message=message, remedy=remedy)


def warning(message: str, remedy: str) -> Diagnosis:
    """A run would be slow, or fragile, or not what was meant."""
    return Diagnosis(level=Level.WARNING, message=message, remedy=remedy)


def error(message: str, remedy: str) -> Diagnosis:
    """A run would fail."""
    return Diagnosis(level=Level.ERROR, message=message, remedy=remedy)


def unknown(message: str) -> Diagnosis:
    """It cannot be told here."""
    return Diagnosis(level=Level.UNKNOWN, message=message)
