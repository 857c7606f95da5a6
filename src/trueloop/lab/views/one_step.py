"""One update of a small model, picked from the run that the arithmetic page shows."""

from dataclasses import asdict
from typing import Any

from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.programs.one_step import OneStep as Query
from trueloop.lab.teaching.programs.one_step import one_step, too_large

NEEDS_TORCH = True


def answer(query: Query) -> dict[str, Any]:
    """Give the step, stage by stage, and the program that computed it; or say why it is too large."""
    from trueloop.lab.teaching.one_update import step

    refused = too_large(query.plan())
    if refused:
        return {"too_large": refused}
    made = step(query)
    return {
        "too_large": "",
        **asdict(made),
        "stages": [asdict(stage) for stage in made.stages()],
        "code": highlight(one_step(query).rstrip()),
    }
