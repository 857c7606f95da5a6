"""`trueloop doctor`: what of this machine would spoil a run, with a remedy for each."""

from __future__ import annotations

import json as json_format
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from trueloop.engines.doctor.diagnosis import Need
from trueloop.engines.doctor.examine import examine, in_one_line, would_fail
from trueloop.engines.doctor.reading import read_machine
from trueloop.faces.cli.doctor_page import print_examined
from trueloop.faces.cli.options import Count, Flag
from trueloop.faces.needs import need_of
from trueloop.ground.errors import InvalidConfig

MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
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

    def over(self, need: Need) -> Need:
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


def doctor_command(
    *,
    run: Annotated[str | None, Parameter(name="--for")] = None,
    asks: Annotated[Asks | None, Parameter(name="*")] = None,
    root: Path = Path("runs"),
    quick: Flag = False,
    json: Flag = False,
) -> int:
    """Look at this machine before a run does: torch and driver, memory, disk, limits, threads.

    Returns:
        The exit code: 0, or 1 where a run would fail.

    Args:
        run: A recipe, as for `trueloop train`, or a run: what it asks for is weighed against what is there.
        root: Where runs lie.
        quick: Leave out what takes seconds: trying to import torchvision, and the free memory of GPUs.
        json: Print one JSON object and nothing else.
    """
    asked, folder = need_of(run, root) if run else (Need(), root)
    need = (asks or Asks()).over(asked)
    machine = read_machine((asks and asks.run_dir) or folder, deep=not quick)
    found = examine(machine, need)
    if json:
        record = {"would_fail": would_fail(found), "line": in_one_line(machine, found)}
        print(json_format.dumps({**record, "checks": [each.as_json() for each in found]}, indent=2))
    else:
        print_examined(machine, found)
    return 1 if would_fail(found) else 0
