"""`trueloop doctor`: problems of this machine that would affect a run, each with a fix."""

import json as json_format
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from trueloop.app.option_types import Flag
from trueloop.app.training.resource_needs import find_need
from trueloop.cli.doctor_options import DoctorOptions, select_checks
from trueloop.cli.doctor_output import print_report
from trueloop.doctor.diagnosis import RunRequirements
from trueloop.doctor.probe import read_machine
from trueloop.doctor.run_checks import has_errors, run_checks, summarize


def doctor_command(
    *,
    run: Annotated[str | None, Parameter(name="--for")] = None,
    options: Annotated[DoctorOptions | None, Parameter(name="*")] = None,
    root: Path = Path("runs"),
    only: tuple[str, ...] = (),
    quick: Flag = False,
    json: Flag = False,
) -> int:
    """Check this machine before a run: torch and driver, memory, disk, limits, threads.

    Returns:
        The exit code: 0, or 1 if a run would fail.

    Args:
        run: A recipe as for `trueloop train`, or a run. Its requirements are compared with the machine.
        root: Folder of the runs.
        only: Run only these checks: --only cpu-fallback --only disk. By default all.
        quick: Skip what takes seconds: the trial import of torchvision and the free memory of GPUs.
        json: Print one JSON object and nothing else.
    """
    names = select_checks(only)
    required, folder = find_need(run, root) if run else (RunRequirements(), root)
    requirements = (options or DoctorOptions()).override(required)
    machine = read_machine((options and options.run_dir) or folder, deep=not quick)
    results = [each for each in run_checks(machine, requirements) if not names or each.check.name in names]
    if json:
        record = {"would_fail": has_errors(results), "line": summarize(machine, results)}
        print(json_format.dumps({**record, "checks": [each.as_json() for each in results]}, indent=2))
    else:
        print_report(machine, results)
    return 1 if has_errors(results) else 0
