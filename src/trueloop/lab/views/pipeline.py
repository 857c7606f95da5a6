"""Answer the page "Data pipeline": the examples, the orders of the sampler, the batches, and the program."""

from dataclasses import asdict
from typing import Any

from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.programs.pipeline import Pipeline as Query
from trueloop.lab.teaching.programs.pipeline import pipeline

NEEDS_TORCH = True


def answer(query: Query) -> dict[str, Any]:
    """Return the batches of two epochs, and the program that loaded them."""
    from trueloop.lab.teaching.pipeline import run_pipeline

    program = pipeline(query)
    return {**asdict(run_pipeline(query, program)), "code": highlight(program.text.rstrip())}
