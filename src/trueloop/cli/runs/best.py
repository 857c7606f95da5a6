"""`trueloop runs best`: the best evaluation of all runs, and whether its checkpoint can be used."""

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
    """Find the best evaluation of all runs and verify the checksums of its checkpoint.

    Every evaluation of every run counts. If the checkpoint is missing or damaged, the best evaluation with an intact
    checkpoint is printed as well. Exit code: 0 if there is an intact checkpoint, else 1.

    Args:
        metric: Name of the metric in the journal: val/loss, val/accuracy.
        mode: Whether a smaller or larger value is better; by default as the runs monitor it, or by its name.
        recipe: Consider only runs of this recipe.
        root: Folder of the runs.
        json: Print one JSON object and nothing else.
    """
    runs = _runs(root, recipe)
    result = find_best(runs, metric, mode or require_mode(metric, runs))
    if json:
        alternative = result.alternative.as_json() if result.alternative else None
        record = {"metric": metric, "mode": result.mode, "best": result.best.as_json(), "alternative": alternative}
        print(encode_line(record), end="")
    else:
        _print_evaluation(metric, result.best)
        if result.alternative:
            print_line("\nThe best evaluation with an intact checkpoint:\n")
            _print_evaluation(metric, result.alternative)
        elif result.best.problem:
            print_line("\nNo other evaluation of this metric has an intact checkpoint either.")
    return 0 if not result.best.problem or result.alternative else 1


def _runs(root: Path, recipe: str | None) -> list[Overview]:
    all_runs = load_overviews(root)
    if not all_runs:
        raise RunFolderError(f"There are no runs in {str(root)!r}.", fix="Pass the folder of the runs with --root.")
    runs = [run for run in all_runs if recipe in (None, run.recipe)]
    if not runs:
        names = ", ".join(sorted({run.recipe for run in all_runs if run.recipe}))
        raise InvalidConfig(
            f"There are no runs of the recipe {recipe!r} in {str(root)!r}.", fix=f"Recipes of these runs: {names}."
        )
    return runs


def _print_evaluation(metric: str, evaluated: EvaluatedCheckpoint) -> None:
    rows = [
        [metric, format_float(evaluated.point.value, 6)],
        ["run", evaluated.run.name],
        ["epoch", str(evaluated.point.epoch)],
        ["update", str(evaluated.point.update)],
        ["state", evaluated.run.state],
        ["checkpoint", str(evaluated.checkpoint)],
        ["checksums", evaluated.problem or "verified, every byte"],
    ]
    print_line("\n".join(align_columns(["", ""], rows)))  # not shortened, so that the path can be copied
