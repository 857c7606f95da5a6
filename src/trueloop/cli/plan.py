"""`trueloop plan`: print the numbers of a training run with their formulas, and its timeline."""

import json as json_format
from dataclasses import asdict, dataclass

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console

from trueloop.app.option_types import Count, Flag
from trueloop.cli.model_sizes import ModelSizes
from trueloop.cli.plan_output import print_plan
from trueloop.cli.scale_output import print_scale
from trueloop.core.arithmetic import plan

ASCII = str.maketrans("█▄·×⋯–•…", "#+_x~-*.")  # for an output that can only encode ASCII  # noqa: RUF001


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a run, as options of the command line."""

    dataset: Count
    """Number of examples in the training set."""
    batch: Count
    """Number of examples per micro-batch, on each process."""
    epochs: Count = 1
    """Number of passes over the training set."""
    accumulate: Count = 1
    """Number of micro-batches per optimizer update."""
    processes: Count = 1
    """Number of processes that train together."""
    drop_last: Flag = False
    """Leave out the partial batch at the end of every epoch."""
    sample_bytes: Count | None = None
    """Size of one example in bytes, for the memory of a batch."""


def plan_command(sizes: Sizes | None = None, model: ModelSizes | None = None, *, json: Flag = False) -> None:
    """Compute the iterations, updates and examples of a run, or memory, traffic and time of a large model.

    Args:
        json: Print one JSON object and nothing else.
    """
    if sizes is None and model is None:
        raise CycloptsError(msg="Pass --dataset and --batch, or --parameters.", app=App(name="trueloop plan"))
    run = plan(**asdict(sizes)) if sizes else None
    model_scale = model.scale_plan() if model else None
    if json:
        numbers = run.as_dict() if run else {}
        model_numbers = model_scale.as_dict() if model_scale else {}
        model_numbers = {"model": model_numbers} if run and model_scale else model_numbers
        print(json_format.dumps({**numbers, **model_numbers}, indent=2))
        return
    console = Console(highlight=False)
    with console.capture() as page:
        if run:
            print_plan(run, console)
        if run and model_scale:
            console.print()
        if model_scale:
            print_scale(model_scale, console)
    text = "\n".join(line.rstrip() for line in page.get().splitlines()).rstrip("\n") + "\n"
    console.file.write(text.translate(ASCII) if console.options.ascii_only else text)
