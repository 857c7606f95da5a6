"""`trueloop runs best`: the best evaluation of all runs, its checkpoint, and whether that can be used."""

from pathlib import Path
from typing import Literal

from trueloop.app.option_types import Flag
from trueloop.app.runs.best_run import EvaluatedCheckpoint, find_best
from trueloop.cli.columns import align_columns, print_line
from trueloop.cli.runs import Root
from trueloop.core.errors import InvalidConfig, RunFolderError
from trueloop.core.formatting import format_float
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.queries.index import load_overviews
from trueloop.runs.queries.overview import Overview
from trueloop.runs.queries.ranking import require_mode


def best_command(
    *,
    metric: str = "val/loss",
    mode: Literal["min", "max"] | None = None,
    recipe: str | None = None,
    root: Root = Path("runs"),
    json: Flag = False,
) -> int:
    """Name the best evaluation over all runs, and its checkpoint, every byte of which is checked.

    Every evaluation of every run counts. Where its checkpoint is missing or damaged, the best one whose is not is
    offered as well. Exit code: 0 where there is a checkpoint to use, else 1.

    Args:
        metric: As the journal names it: val/loss, val/accuracy.
        mode: Whether less or more is better; else as the runs monitor it, or as its name says.
        recipe: Only runs of this recipe.
        root: Where the runs lie.
        json: Print one JSON object and nothing else.
    """
    runs = _runs(root, recipe)
    found = find_best(runs, metric, mode or require_mode(metric, runs))
    if json:
        offered = found.alternative.as_json() if found.alternative else None
        print(
            encode_line({"metric": metric, "mode": found.mode, "best": found.best.as_json(), "offered": offered}),
            end="",
        )
    else:
        _print(metric, found.best)
        if found.alternative:
            print_line("\nThe best one whose checkpoint is whole:\n")
            _print(metric, found.alternative)
        elif found.best.problem:
            print_line("\nNo other evaluation of this metric has a whole checkpoint either.")
    return 0 if not found.best.problem or found.alternative else 1


def _runs(root: Path, recipe: str | None) -> list[Overview]:
    found = load_overviews(root)
    if not found:
        raise RunFolderError(f"There are no runs in {str(root)!r}.", fix="Say where they are with --root.")
    runs = [run for run in found if recipe in (None, run.recipe)]
    if not runs:
        known = ", ".join(sorted({run.recipe for run in found if run.recipe}))
        raise InvalidConfig(f"There are no runs of the recipe {recipe!r} in {str(root)!r}.", fix=f"There are: {known}.")
    return runs


def _print(metric: str, answer: EvaluatedCheckpoint) -> None:
    rows = [
        [metric, format_float(answer.point.value, 6)],
        ["run", answer.run.name],
        ["epoch", str(answer.point.epoch)],
        ["update", str(answer.point.update)],
        ["state", answer.run.state],
        ["checkpoint", str(answer.checkpoint)],
        ["checksums", answer.problem or "verified, every byte"],
    ]
    print_line("\n".join(align_columns(["", ""], rows)))  # not shortened: the path is to be copied
