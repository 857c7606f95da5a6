"""Answer the page "Simulator" before a run: settings, failures that can be injected, and the generated script."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import Bounds
from trueloop.failures.teaching_script import CannotInject
from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.inject import Inject, Injectable, injectables, write_script
from trueloop.lab.teaching.scenarios import SCENARIOS, Scenario
from trueloop.lab.teaching.simulation import Simulation

NEEDS_TORCH = False
Code = Annotated[str, Bounds(1, 12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A simulation and the failures injected into it."""

    config: Simulation = field(default_factory=Simulation)
    bugs: Annotated[tuple[Code, ...], Bounds(0, 8), "codes of failures in the catalogue"] = ()


def answer(query: Query) -> dict[str, Any]:
    """Return the script, the lines that failures have changed, and whether each other failure can be added."""
    selected = [_injectable(code) for code in dict.fromkeys(query.bugs)]
    try:
        loop, config = write_script(query.config, _injects(selected))
    except CannotInject as error:
        raise InvalidConfig(error.what, why=error.why, fix=error.fix) from None
    return {
        "config": asdict(config),
        "script": highlight(loop.text()),
        "broken": [broken._asdict() for broken in loop.changed_lines()],
        "bugs": [_failure_json(entry, selected, query.config, config) for entry in injectables().values()],
        "scenarios": [_scenario_json(name, scenario) for name, scenario in SCENARIOS.items()],
    }


def _scenario_json(name: str, scenario: Scenario) -> dict[str, Any]:
    runs = [
        {"label": variant.label, "config": asdict(variant.simulation), "bugs": variant.bugs}
        for variant in scenario.variants
    ]
    return {"name": name, "title": scenario.title, "claim": scenario.claim, "runs": runs}


def _failure_json(
    entry: Injectable, selected: Sequence[Injectable], requested: Simulation, config: Simulation
) -> dict[str, Any]:
    """Describe a failure, the settings that its injection would change, and why it cannot be injected if it cannot.

    Args:
        entry: the failure.
        selected: the failures that are injected.
        requested: settings without the changes that failures need.
        config: settings with the changes that ``selected`` need.
    """
    others = [other for other in selected if other is not entry]
    changes, conflict = dict[str, Any](), ""
    try:
        before = config if entry not in selected else write_script(requested, _injects(others)).simulation
        after = config if entry in selected else write_script(requested, _injects([*selected, entry])).simulation
        changes = {
            field.name: getattr(after, field.name)
            for field in fields(Simulation)
            if getattr(after, field.name) != getattr(before, field.name)
        }
    except CannotInject as error:
        conflict = " ".join(filter(None, (error.what, error.fix)))
    except InvalidConfig as error:  # the failure needs settings that are invalid together with the other settings
        conflict = error.what
    return {
        "code": entry.code,
        "family": entry.family,
        "title": entry.title,
        "severity": entry.severity,
        "symptom": entry.symptom,
        "late": entry.late,
        "changes": changes,
        "conflict": conflict,
    }


def _injects(entries: Sequence[Injectable]) -> list[Inject]:
    return [entry.inject for entry in entries]


def _injectable(code: str) -> Injectable:
    available = injectables()
    if code not in available:
        raise InvalidConfig(f"bugs has {code!r}.", fix=f"It can have {', '.join(available)}.")
    return available[code]
