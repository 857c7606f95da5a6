"""Answer the page "Production loop": the program of a selection, its chart, the equivalent Trainer call, and costs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from typing import Annotated, Any

from trueloop.failures.load import catalogue
from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.production.chart import Chart, chart
from trueloop.lab.teaching.production.components import COMPONENTS
from trueloop.lab.teaching.production.costs import CLOCKS, MODELS, costs
from trueloop.lab.teaching.production.distributed import distributed_program
from trueloop.lab.teaching.production.program import Program, production_program, trainer_program
from trueloop.lab.teaching.production.selection import Selection


def new_lines(before: str, after: str) -> list[int]:
    """Return the line numbers, from 1, of the non-blank lines of ``after`` that ``before`` lacks."""
    old, new = before.splitlines(), after.splitlines()
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    common = {block.b + offset for block in blocks for offset in range(block.size)}
    return [index + 1 for index, line in enumerate(new) if index not in common and line.strip()]


def removed_lines(before: str, after: str) -> list[str]:
    """Return the non-blank lines of ``before`` that ``after`` lacks."""
    old = before.splitlines()
    return [old[number - 1] for number in new_lines(after, before)]


NEEDS_TORCH = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The requested selection, and the selection that the page shows now."""

    selection: Annotated[Selection, "components of the loop"] = field(default_factory=Selection)
    before: Annotated[Selection | None, "selection on the page; the answer marks what is new compared with it"] = None


def answer(query: Query) -> dict[str, Any]:
    """Return the highlighted programs with their new lines, the chart, the components and the table of costs."""
    selected = query.selection.with_required()
    program, trainer = production_program(selected), trainer_program(selected)
    before = query.before
    old_program = production_program(before) if before else None
    added = [name for name in selected.enabled if name not in query.selection.enabled]
    return {
        "selection": asdict(selected),
        "on": list(selected.enabled),
        "added": [{"name": name, "because": "Early stopping needs an evaluation."} for name in added],
        "components": _components(selected),
        "program": _program_json(program, old_program),
        "trainer": _program_json(trainer, trainer_program(before) if before else None),
        "chart": _chart_json(chart(selected, program), chart(before, old_program) if before and old_program else None),
        "costs": _costs(selected),
        "distributed": highlight(distributed_program().text.rstrip("\n")),
    }


def _components(selected: Selection) -> list[dict[str, Any]]:
    failures = catalogue()
    return [
        {
            **asdict(component),
            "name": name,
            "on": name in selected.enabled,
            "codes": [{"code": code, "title": failures[code].failure.title} for code in component.codes],
        }
        for name, component in COMPONENTS.items()
    ]


def _program_json(program: Program, before: Program | None) -> dict[str, Any]:
    text = program.text.rstrip("\n")
    return {
        "lines": highlight(text),
        "new": new_lines(before.text, program.text) if before else [],
        "removed": removed_lines(before.text, program.text) if before else [],
        "count": sum(bool(line.strip()) for line in text.splitlines()),
    }


def _chart_json(chart: Chart, before: Chart | None) -> dict[str, Any]:
    old = {(box.name, box.text) for box in before.boxes} if before else None
    boxes = [{**asdict(box), "new": old is not None and (box.name, box.text) not in old} for box in chart.boxes]
    return {"boxes": boxes, "edges": [edge._asdict() for edge in chart.edges]}


def _costs(selected: Selection) -> dict[str, Any]:
    table = costs()
    models: Sequence[str] = list(MODELS)
    rows = [
        {
            "name": row.name,
            "on": _is_on(row.name, selected),
            "title": row.title,
            "lines": row.lines,
            "ratios": {model: {clock: asdict(row.ratios[model, clock]) for clock in CLOCKS} for model in models},
            "memory_bytes": row.memory_bytes,
            "disk_bytes": row.disk_bytes,
        }
        for row in table.rows
    ]
    return {"models": dict(MODELS), "rows": rows, "measured_on": table.measured_on}


def _is_on(row: str, selected: Selection) -> bool:
    component, _, precision = row.partition(" ")
    return precision == selected.precision if precision else component in selected.enabled
