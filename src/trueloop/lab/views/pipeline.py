"""A data pipeline at work: examples, sampler, workers, collate, batches."""

from dataclasses import asdict
from typing import Any

from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.programs.pipeline import Pipeline as Query
from trueloop.lab.teaching.programs.pipeline import pipeline

NEEDS_TORCH = True


def answer(query: Query) -> dict[str, Any]:
    """Give all that was drawn in two epochs, and the program that drew it."""
    from trueloop.lab.teaching.pipeline import drawn

    program = pipeline(query)
    return {**asdict(drawn(query, program)), "code": highlight(program.text.rstrip())}
