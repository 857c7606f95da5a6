"""Options of `trueloop doctor`: the requirements of a run, and which checks to run."""

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trueloop.app.option_types import Count
from trueloop.core.errors import InvalidConfig
from trueloop.doctor.diagnosis import RunRequirements
from trueloop.doctor.run_checks import all_checks

MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Requirements of a run, as options of the command line."""

    device: str | None = None
    """Device of the run: auto, cpu, cuda, cuda:1 or mps."""
    processes: Count | None = None
    """Number of training processes on this machine."""
    workers: Count | None = None
    """Number of data loader workers of each process."""
    batch_mib: float | None = None
    """Size of one micro-batch in MiB."""
    checkpoint_mib: float | None = None
    """Size of one checkpoint in MiB."""
    run_dir: Path | None = None
    """Run folder that the run will use."""

    def override(self, requirements: RunRequirements) -> RunRequirements:
        """Return the requirements, with those set on the command line replaced.

        Raises:
            InvalidConfig: a number is below its minimum or not finite.
        """
        minimums = {"processes": 1, "workers": 0, "batch_mib": 0, "checkpoint_mib": 0}
        for name, minimum in minimums.items():
            value: float | None = getattr(self, name)
            if value is not None and not minimum <= value < math.inf:
                raise InvalidConfig(f"--{name.replace('_', '-')} is {value:g}.", fix=f"It must be {minimum} or more.")
        overrides = {
            "device": self.device,
            "processes": self.processes,
            "workers": self.workers,
            "batch_bytes": None if self.batch_mib is None else round(self.batch_mib * MIB),
            "checkpoint_bytes": None if self.checkpoint_mib is None else round(self.checkpoint_mib * MIB),
        }
        return replace(requirements, **{name: value for name, value in overrides.items() if value is not None})


def select_checks(requested: Iterable[str]) -> frozenset[str]:
    """Return the normalized names of the requested checks.

    Raises:
        InvalidConfig: no check has a requested name; the message suggests the closest one.
    """
    available = list(all_checks())
    names = [name.lower().replace("_", "-") for name in requested]
    for name in names:
        if name not in available:
            close = difflib.get_close_matches(name, available, n=1)
            hint = f"Did you mean {close[0]}? " if close else ""
            raise InvalidConfig(f"There is no check {name!r}.", fix=f"{hint}Available checks: {', '.join(available)}.")
    return frozenset(names)
