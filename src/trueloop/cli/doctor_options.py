"""What a run would ask of the machine, and which checks are made, as options of `trueloop doctor`."""

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
    """What a run would ask for, as options of the command line."""

    device: str | None = None
    """auto, cpu, cuda, cuda:1 or mps."""
    processes: Count | None = None
    """Training processes on this machine."""
    workers: Count | None = None
    """Loader workers of each process."""
    batch_mib: float | None = None
    """Size of one micro-batch in MiB."""
    checkpoint_mib: float | None = None
    """Size of one checkpoint in MiB."""
    run_dir: Path | None = None
    """Where the run is to lie."""

    def over(self, need: RunRequirements) -> RunRequirements:
        """Return a need with what was typed over it.

        Raises:
            InvalidConfig: a number that cannot be.
        """
        least = {"processes": 1, "workers": 0, "batch_mib": 0, "checkpoint_mib": 0}
        for name, bound in least.items():
            value: float | None = getattr(self, name)
            if value is not None and not bound <= value < math.inf:
                raise InvalidConfig(f"--{name.replace('_', '-')} is {value:g}.", fix=f"It must be {bound} or more.")
        typed = {
            "device": self.device,
            "processes": self.processes,
            "workers": self.workers,
            "batch_bytes": None if self.batch_mib is None else round(self.batch_mib * MIB),
            "checkpoint_bytes": None if self.checkpoint_mib is None else round(self.checkpoint_mib * MIB),
        }
        return replace(need, **{name: value for name, value in typed.items() if value is not None})


def select_checks(words: Iterable[str]) -> frozenset[str]:
    """Return the names of checks that were typed.

    Raises:
        InvalidConfig: there is none of that name; names the nearest.
    """
    known = list(all_checks())
    found = [word.lower().replace("_", "-") for word in words]
    for word in found:
        if word not in known:
            near = difflib.get_close_matches(word, known, n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise InvalidConfig(f"There is no check {word!r}.", fix=f"{hint}There are {', '.join(known)}.")
    return frozenset(found)
