"""Find all checks, run them, and summarize the results."""

import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple, get_args

from trueloop.core.formatting import format_count, format_size
from trueloop.doctor import checks
from trueloop.doctor.diagnosis import Check, Diagnosis, Group, Level, RunRequirements
from trueloop.doctor.machine import Machine

PROBLEM_LEVELS: Final = (Level.ERROR, Level.WARNING)


class CheckResult(NamedTuple):
    """A check with its diagnosis."""

    check: Check
    diagnosis: Diagnosis

    def as_json(self) -> dict[str, str]:
        """Return the result as a JSON-ready dictionary."""
        check, diagnosis = self.check, self.diagnosis
        record = {"check": check.name, "group": check.group, "title": check.title, "level": diagnosis.level.value}
        optional = {"remedy": diagnosis.remedy, "page": check.failure if diagnosis.level in PROBLEM_LEVELS else ""}
        return record | {"message": diagnosis.message} | {key: text for key, text in optional.items() if text}


@cache
def all_checks() -> Mapping[str, Check]:
    """Return every check by its name, ordered by group and name."""
    defined: list[Check] = []
    for module in pkgutil.iter_modules(checks.__path__):
        contents = vars(importlib.import_module(f"{checks.__name__}.{module.name}")).values()
        defined += [value for value in contents if isinstance(value, Check)]
    defined.sort(key=lambda check: (get_args(Group).index(check.group), check.name))
    return {check.name: check for check in defined}


def run_checks(machine: Machine, run: RunRequirements) -> list[CheckResult]:
    """Return the results of the checks that concern this machine and this run.

    Args:
        machine: machine on which the run would start.
        run: resources that the run would need.
    """
    results = ((check, check.inspect(machine, run)) for check in all_checks().values())
    return [CheckResult(check, diagnosis) for check, diagnosis in results if diagnosis is not None]


def has_errors(results: Iterable[CheckResult]) -> bool:
    """Return True if a check found an error, which would make a run fail."""
    return any(result.diagnosis.level is Level.ERROR for result in results)


def summarize(machine: Machine, results: Sequence[CheckResult]) -> str:
    """Summarize the machine and its problems in one line.

    Returns:
        "torch 2.13.0 (CPU only), 2 cores, 24.0 GiB free; 1 warning: /dev/shm has 64.0 MiB ..."
    """
    facts = [f"torch {machine.torch.version} ({machine.torch.build})"] if machine.torch else ["no torch"]
    if machine.gpus:
        first = machine.gpus[0]
        count = f"{len(machine.gpus)} x " if len(machine.gpus) > 1 else ""
        facts.append(f"{count}{first.name} ({format_size(first.memory_bytes)})")
    facts.append(f"{machine.usable_cores:g} {'core' if machine.usable_cores == 1 else 'cores'}")
    if machine.available_bytes is not None:
        facts.append(f"{format_size(machine.available_bytes)} of memory free")
    problems = [result for level in PROBLEM_LEVELS for result in results if result.diagnosis.level is level]
    if not problems:
        return f"{', '.join(facts)}; nothing is wrong"
    levels = Counter(result.diagnosis.level for result in problems)
    counts = ", ".join(format_count(number, level.value) for level, number in levels.items())
    hint = f" ({len(problems) - 1} more: trueloop doctor)" if len(problems) > 1 else ""
    return f"{', '.join(facts)}; {counts}: {problems[0].diagnosis.message}{hint}"
