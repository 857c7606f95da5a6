"""`trueloop plan`: the numbers of a training run, each with its formula, and the run drawn as a timeline."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict, dataclass

from cyclopts import Parameter
from rich.console import Console

from trueloop.faces.cli.options import Count, Flag
from trueloop.faces.cli.plan_page import print_plan
from trueloop.ground.arithmetic import plan

ASCII = str.maketrans("█▄·×⋯–•…", "#+_x~-*.")  # for an output that takes nothing else  # noqa: RUF001


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a run, as options of the command line."""

    dataset: Count
    """Examples in the training set."""
    batch: Count
    """Examples per micro-batch, on each process."""
    epochs: Count = 1
    """Passes over the training set."""
    accumulate: Count = 1
    """Micro-batches per optimizer update."""
    processes: Count = 1
    """Processes that train together."""
    drop_last: Flag = False
    """Leave out the partial batch at the end of every epoch."""
    sample_bytes: Count | None = None
    """Size of one example in bytes, for the memory of a batch."""


def plan_command(sizes: Sizes, *, json: Flag = False) -> None:
    """Count the iterations, updates and examples of a training run, and draw it.

    Args:
        json: Print one JSON object and nothing else.
    """
    made = plan(**asdict(sizes))
    if json:
        print(json_format.dumps(made.as_dict(), indent=2))
        return
    console = Console(highlight=False)
    with console.capture() as page:
        print_plan(made, console)
    text = "\n".join(line.rstrip() for line in page.get().splitlines()) + "\n"
    console.file.write(text.translate(ASCII) if console.options.ascii_only else text)
