"""Finds all checks, runs them, and summarizes the results."""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
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
        check, found = self.check, self.diagnosis
        record = {"check": check.name, "group": check.group, "title": check.title, "level": found.level.value}
        optional = {"remedy": found.remedy, "page": check.failure if found.level in PROBLEM_LEVELS else ""}
        return record | {"message": found.message} | {key: text for key, text in optional.items() if text}


@cache
def all_checks() -> Mapping[str, Check]:
    """Return every check by its name, ordered by group and name."""
    modules = [
        importlib.import_module(f"{checks.__name__}.{each.name}") for each in pkgutil.iter_modules(checks.__path__)
    ]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Check)]
    groups = get_args(Group)
    return {each.name: each for each in sorted(found, key=lambda each: (groups.index(each.group), each.name))}


def run_checks(machine: Machine, run: RunRequirements) -> list[CheckResult]:
    """Return the results of the checks that concern this machine and this run.

    Args:
        machine: machine on which the run would start.
        run: resources that the run would need.
    """
    results = ((each, each.inspect(machine, run)) for each in all_checks().values())
    return [CheckResult(each, diagnosis) for each, diagnosis in results if diagnosis is not None]


def has_errors(results: Iterable[CheckResult]) -> bool:
    """Return True if a check found an error, which would make a run fail."""
    return any(each.diagnosis.level is Level.ERROR for each in results)


def summarize(machine: Machine, results: Sequence[CheckResult]) -> str:
    """Summarize the machine and its problems in one line.

    Returns:
        "torch 2.13.0 (CPU only), 2 cores, 24.0 GiB free; 1 warning: /dev/shm has 64.0 MiB ..."
    """
    parts = [f"torch {machine.torch.version} ({machine.torch.build})"] if machine.torch else ["no torch"]
    if machine.gpus:
        first = machine.gpus[0]
        times = f"{len(machine.gpus)} x " if len(machine.gpus) > 1 else ""
        parts.append(f"{times}{first.name} ({format_size(first.memory_bytes)})")
    parts.append(f"{machine.usable_cores:g} {'core' if machine.usable_cores == 1 else 'cores'}")
    if machine.available_bytes is not None:
        parts.append(f"{format_size(machine.available_bytes)} of memory free")
    by_level = [[each for each in results if each.diagnosis.level is level] for level in PROBLEM_LEVELS]
    problems = list(chain.from_iterable(by_level))
    if not problems:
        return f"{', '.join(parts)}; nothing is wrong"
    counts = ", ".join(format_count(len(each), each[0].diagnosis.level.value) for each in by_level if each)
    more = f" ({len(problems) - 1} more: trueloop doctor)" if len(problems) > 1 else ""
    return f"{', '.join(parts)}; {counts}: {problems[0].diagnosis.message}{more}"
