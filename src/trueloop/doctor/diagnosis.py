"""Define checks of the machine: their input `RunRequirements` and their result `Diagnosis`."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from trueloop.doctor.machine import Machine

Group = Literal["software", "accelerator", "processor", "memory", "disk", "numbers", "output"]

PREFETCH: Final = 2  # batches that each worker loads in advance: the default prefetch_factor of DataLoader


class Level(StrEnum):
    """Severity of a diagnosis."""

    OK = "ok"
    NOTE = "note"
    """Nothing is wrong, but the fact is worth knowing."""
    WARNING = "warning"
    """A run would be slow, fragile, or different from what was intended."""
    ERROR = "error"
    """A run would fail."""
    UNKNOWN = "unknown"
    """The machine does not report what the check needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Result of one check."""

    level: Level
    message: str
    """One or two sentences with the numbers."""
    remedy: str = ""
    """What the user can do; present for every warning and error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequirements:
    """Resources that a run needs from the machine. None = unknown."""

    device: str = "auto"
    processes: int = 1
    """Number of training processes on this machine."""
    workers: int | None = None
    """Number of loader processes per training process; None = chosen when the run starts."""
    batch_bytes: int | None = None
    """Size of one micro-batch as the loader returns it."""
    checkpoint_bytes: int | None = None
    checkpoints: int = 4
    """Number of checkpoints on the disk at the same time, including the one being written."""
    threads: int | None = None
    """Number of threads per operation; None = torch's default."""
    deterministic: bool = False

    @property
    def in_flight_bytes(self) -> int | None:
        """Bytes of shared memory that batches take; None if the batch size or the number of workers is unknown.

        Source: torch.utils.data.DataLoader has prefetch_factor batches per worker, and one batch is in training.
        """
        if self.workers is None or self.batch_bytes is None:
            return None
        return self.processes * (self.workers * PREFETCH + 1) * self.batch_bytes if self.workers else 0


Inspect = Callable[[Machine, RunRequirements], Diagnosis | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of the machine."""

    name: str
    """Name for ``--only`` and JSON: "shared-memory"."""
    title: str
    group: Group
    inspect: Inspect
    """Function that returns the diagnosis, or None if the check does not concern this machine or this run."""
    failure: str = ""
    """Code of the failure whose page explains more."""


def check(title: str, group: Group, *, failure: str = "") -> Callable[[Inspect], Check]:
    """Return a decorator that converts a function ``check_<name>(machine, run)`` to a `Check`."""

    def decorate(inspect: Inspect) -> Check:
        name = inspect.__name__.removeprefix("check_").replace("_", "-")
        return Check(name=name, title=title, group=group, inspect=inspect, failure=failure)

    return decorate


def ok(message: str) -> Diagnosis:
    """Return a diagnosis of level OK."""
    return Diagnosis(level=Level.OK, message=message)


def note(message: str, remedy: str = "") -> Diagnosis:
    """Return a diagnosis of level NOTE."""
    return Diagnosis(level=Level.NOTE, message=message, remedy=remedy)


def warning(message: str, remedy: str) -> Diagnosis:
    """Return a diagnosis of level WARNING."""
    return Diagnosis(level=Level.WARNING, message=message, remedy=remedy)


def error(message: str, remedy: str) -> Diagnosis:
    """Return a diagnosis of level ERROR."""
    return Diagnosis(level=Level.ERROR, message=message, remedy=remedy)


def unknown(message: str) -> Diagnosis:
    """Return a diagnosis of level UNKNOWN."""
    return Diagnosis(level=Level.UNKNOWN, message=message)
