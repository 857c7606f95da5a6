"""The simulator before anything runs: what can be set, which failures can be put in, and the script that would run."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import Bounds
from trueloop.failures.load import Entry, catalogue
from trueloop.failures.page import join_wrapped_lines, split_sections
from trueloop.failures.teaching_script import CannotInject
from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.inject import Inject, write_script
from trueloop.lab.teaching.scenarios import SCENARIOS, Scenario
from trueloop.lab.teaching.simulation import Simulation

NEEDS_TORCH = False
INJECTABLE: Final = tuple(entry for entry in catalogue().values() if entry.failure.inject)
_SENTENCE: Final = re.compile(r"(?<=[.;])\s")
Code = Annotated[str, Bounds(1, 12)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A simulation, and what is broken in it."""

    config: Simulation = field(default_factory=Simulation)
    bugs: Annotated[tuple[Code, ...], Bounds(0, 8), "codes of the catalogue"] = ()


def answer(query: Query) -> dict[str, Any]:
    """Return the script, the lines that are broken, and for every failure whether it can be put in as well."""
    chosen = [_injectable(code) for code in dict.fromkeys(query.bugs)]
    try:
        loop, config = write_script(query.config, _injects(chosen))
    except CannotInject as lack:
        raise InvalidConfig(lack.what, why=lack.why, fix=lack.fix) from None
    return {
        "config": asdict(config),
        "script": highlight(loop.text()),
        "broken": [broken._asdict() for broken in loop.changed_lines()],
        "bugs": [_bug(entry, chosen, query.config) for entry in INJECTABLE],
        "scenarios": [_experiment(name, scenario) for name, scenario in SCENARIOS.items()],
    }


def _experiment(name: str, scenario: Scenario) -> dict[str, Any]:
    runs = [
        {"label": variant.label, "config": asdict(variant.simulation), "bugs": variant.bugs}
        for variant in scenario.variants
    ]
    return {"name": name, "title": scenario.title, "claim": scenario.claim, "runs": runs}


def _bug(entry: Entry, chosen: Sequence[Entry], config: Simulation) -> dict[str, Any]:
    """Describe a failure as a switch: what it is, and what putting it in would change or is against it."""
    rest = [other for other in chosen if other is not entry]
    changes, against = dict[str, Any](), ""
    try:
        before = write_script(config, _injects(rest)).simulation
        after = asdict(write_script(config, _injects([*rest, entry])).simulation)
        changes = {name: after[name] for name, value in asdict(before).items() if after[name] != value}
    except CannotInject as lack:
        against = " ".join(filter(None, (lack.what, lack.fix)))
    except InvalidConfig as error:  # what it needs cannot be trained with the rest
        against = error.what
    symptom = join_wrapped_lines(dict(split_sections(entry.failure.doc)).get("What you see", ""))
    return {
        "code": entry.code,
        "family": entry.family,
        "slug": entry.slug,
        "title": entry.failure.title,
        "severity": entry.failure.severity.value,
        "symptom": _SENTENCE.split(symptom, maxsplit=1)[0].rstrip(".;") + ".",
        "changes": changes,
        "against": against,
    }


def _injects(entries: Sequence[Entry]) -> list[Inject]:
    return [entry.failure.inject for entry in entries if entry.failure.inject]


def _injectable(code: str) -> Entry:
    for entry in INJECTABLE:
        if entry.code == code:
            return entry
    raise InvalidConfig(f"bugs has {code!r}.", fix=f"It can have {', '.join(entry.code for entry in INJECTABLE)}.")
