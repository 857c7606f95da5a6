"""Page "Production loop": the program of a selection, its chart, the Trainer call that equals it, and what it costs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from typing import Annotated, Any

from trueloop.failures.load import catalogue
from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.production.chart import Chart, chart
from trueloop.lab.teaching.production.components import COMPONENTS
from trueloop.lab.teaching.production.costs import CLOCKS, MODELS, costs
from trueloop.lab.teaching.production.program import Program, trainer_program, write
from trueloop.lab.teaching.production.selection import Selection


def new_lines(before: str, now: str) -> list[int]:
    """Return the numbers, from 1, of the non-blank lines of ``now`` that ``before`` lacks."""
    old, new = before.splitlines(), now.splitlines()
    same = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    kept = {block.b + place for block in same for place in range(block.size)}
    return [place + 1 for place, line in enumerate(new) if place not in kept and line.strip()]


def removed_lines(before: str, now: str) -> list[str]:
    """Return the non-blank lines of ``before`` that ``now`` lacks."""
    old = before.splitlines()
    return [old[number - 1] for number in new_lines(now, before)]


NEEDS_TORCH = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is on now, and what was on before."""

    selection: Annotated[Selection, "what the loop has"] = field(default_factory=Selection)
    before: Annotated[Selection | None, "what the page shows now: the answer marks what is new against it"] = None


def answer(query: Query) -> dict[str, Any]:
    """Return texts as coloured lines with what is new in them, the chart, the components and the table of costs."""
    on = query.selection.completed()
    program, trainer = write(on), trainer_program(on)
    before = query.before
    was = write(before) if before else None
    added = [name for name in on.words if name not in query.selection.words]
    return {
        "selection": asdict(on),
        "on": list(on.words),
        "added": [{"name": name, "because": "Early stopping judges by an evaluation."} for name in added],
        "components": _components(on),
        "program": _program_json(program, was),
        "trainer": _program_json(trainer, trainer_program(before) if before else None),
        "chart": _chart_json(chart(on, program), chart(before, was) if before and was else None),
        "costs": _costs(on),
    }


def _components(on: Selection) -> list[dict[str, Any]]:
    known = catalogue()
    return [
        {
            **asdict(component),
            "name": name,
            "on": name in on.words,
            "codes": [{"code": code, "title": known[code].failure.title} for code in component.codes],
        }
        for name, component in COMPONENTS.items()
    ]


def _program_json(now: Program, before: Program | None) -> dict[str, Any]:
    text = now.text.rstrip("\n")
    return {
        "lines": highlight(text),
        "new": new_lines(before.text, now.text) if before else [],
        "gone": removed_lines(before.text, now.text) if before else [],
        "count": sum(bool(line.strip()) for line in text.splitlines()),
    }


def _chart_json(now: Chart, before: Chart | None) -> dict[str, Any]:
    old = {(box.name, box.words) for box in before.boxes} if before else None
    boxes = [{**asdict(box), "new": old is not None and (box.name, box.words) not in old} for box in now.boxes]
    return {"boxes": boxes, "edges": [edge._asdict() for edge in now.edges]}


def _costs(on: Selection) -> dict[str, Any]:
    found = costs()
    models: Sequence[str] = list(MODELS)
    rows = [
        {
            "name": row.name,
            "on": _is_on(row.name, on),
            "title": row.title,
            "lines": row.lines,
            "ratios": {model: {clock: asdict(row.ratios[model, clock]) for clock in CLOCKS} for model in models},
        }
        for row in found.rows
    ]
    return {"models": dict(MODELS), "rows": rows, "measured_on": found.measured_on}


def _is_on(row: str, on: Selection) -> bool:
    first, _, kind = row.partition(" ")
    return kind == on.precision if kind else first in on.words
