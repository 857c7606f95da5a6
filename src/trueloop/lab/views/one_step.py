"""Answer the page "Arithmetic" on one update of a small model, from the run that the page shows."""

from dataclasses import asdict
from typing import Any

from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.programs.one_step import OneStep as Query
from trueloop.lab.teaching.programs.one_step import one_step, too_large

NEEDS_TORCH = True


def answer(query: Query) -> dict[str, Any]:
    """Return the update, its stages and its program; or a message if it is too large."""
    from trueloop.lab.teaching.one_update import step

    message = too_large(query.plan())
    if message:
        return {"too_large": message}
    update = step(query)
    return {
        "too_large": "",
        **asdict(update),
        "stages": [asdict(stage) for stage in update.stages()],
        "code": highlight(one_step(query).rstrip()),
    }
