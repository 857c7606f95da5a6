"""Finds every check there is and asks them all."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple, get_args

from trueloop.core.formatting import format_count, format_size
from trueloop.doctor import checks
from trueloop.doctor.diagnosis import Check, Diagnosis, Group, Level, Need
from trueloop.doctor.machine import Machine

BAD: Final = (Level.ERROR, Level.WARNING)


class CheckResult(NamedTuple):
    """One check, and what it found."""

    name: str
    """The check's file with hyphens: "shared-memory"."""
    check: Check
    diagnosis: Diagnosis

    def as_json(self) -> dict[str, str]:
        """Return it JSON-ready."""
        found = self.diagnosis
        words = {"check": self.name, "group": self.check.group, "title": self.check.title, "level": found.level.value}
        more = {"remedy": found.remedy, "page": self.check.failure if found.level in BAD else ""}
        return words | {"message": found.message} | {key: text for key, text in more.items() if text}


@cache
def all_checks() -> Mapping[str, Check]:
    """Return every check by its name, in the order of groups and names.

    Raises:
        ValueError: a file without a ``CHECK``.
    """
    found: dict[str, Check] = {}
    for file in pkgutil.iter_modules(checks.__path__, f"{checks.__name__}."):
        check = getattr(importlib.import_module(file.name), "CHECK", None)
        if not isinstance(check, Check):
            raise ValueError(f"{file.name} has no CHECK.")
        found[file.name.rpartition(".")[2].replace("_", "-")] = check
    groups = get_args(Group)
    return dict(sorted(found.items(), key=lambda item: (groups.index(item[1].group), item[0])))


def examine(machine: Machine, need: Need) -> list[CheckResult]:
    """Ask every check; those that do not concern this machine or this run are left out.

    Args:
        machine: where the run would start.
        need: what it would ask for.
    """
    answers = ((name, check, check.look(machine, need)) for name, check in all_checks().items())
    return [CheckResult(name, check, answer) for name, check, answer in answers if answer is not None]


def would_fail(found: Iterable[CheckResult]) -> bool:
    """Return True where something was found with which a run fails."""
    return any(each.diagnosis.level is Level.ERROR for each in found)


def in_one_line(machine: Machine, found: Sequence[CheckResult]) -> str:
    """Say in one line where a run starts, and what is wrong with that.

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
    grave = sorted(
        (each for each in found if each.diagnosis.level in BAD), key=lambda each: BAD.index(each.diagnosis.level)
    )
    if not grave:
        return f"{', '.join(parts)}; nothing is wrong"
    counts = [(level, sum(each.diagnosis.level is level for each in grave)) for level in BAD]
    told = ", ".join(format_count(count, level.value) for level, count in counts if count)
    more = f" ({len(grave) - 1} more: trueloop doctor)" if len(grave) > 1 else ""
    return f"{', '.join(parts)}; {told}: {grave[0].diagnosis.message}{more}"
