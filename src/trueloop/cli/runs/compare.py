"""`trueloop runs compare`: what differs between runs, and the best and last values of their metrics."""

from pathlib import Path
from typing import Any

from trueloop.app.option_types import Flag
from trueloop.cli.columns import align_columns, print_line, terminal_width
from trueloop.cli.run_cells import unique_labels
from trueloop.cli.runs import Root
from trueloop.core.errors import InvalidConfig
from trueloop.runs.journal import read_journal
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.queries.comparison import (
    Difference,
    MetricComparison,
    compare_metrics,
    find_differences,
    metric_modes,
)
from trueloop.runs.queries.overview import Overview, read_overview, require_readable
from trueloop.runs.queries.pages import format_point, format_value, save_html, save_png
from trueloop.runs.queries.ranking import Mode, metric_mode
from trueloop.runs.queries.resolve import find_run


def compare_command(
    *runs: str, png: Path | None = None, html: Path | None = None, root: Root = Path("runs"), json: Flag = False
) -> None:
    """Compare runs: their metrics, and what differs in settings, code, data and environment.

    Args:
        runs: Two or more runs, each by path, name, or the beginning of a name or run id.
        png: Draw the curves of all runs into this PNG file.
        html: Write the curves and the tables to this HTML file.
        root: Folder in which runs are looked up by name.
        json: Print one JSON object and nothing else.
    """
    if len(runs) < 2:
        raise InvalidConfig("A comparison needs at least two runs.", fix="Name two runs: trueloop runs compare A B.")
    overviews = [require_readable(read_overview(find_run(name, root))) for name in runs]
    histories = [read_journal(run.path) for run in overviews]
    differences = find_differences(histories)
    modes: dict[str, Mode | None] = {name: metric_mode(name, overviews) for run in overviews for name in run.metrics}
    metrics = compare_metrics(histories, {**modes, **metric_modes(histories)})
    labelled = dict(zip(unique_labels(overviews), histories, strict=True))
    if png:
        save_png(labelled, png)
    if html:
        save_html(labelled, html, differences=differences, metrics=metrics)
    if json:
        print(encode_line(_record(overviews, differences, metrics, files=[png, html])), end="")
        return
    _print_tables(list(labelled), differences, metrics)
    for kind, file in (("png", png), ("html", html)):
        if file:
            print_line(f"{kind}  {file}")


def _record(
    runs: list[Overview], differences: list[Difference], metrics: list[MetricComparison], *, files: list[Path | None]
) -> dict[str, Any]:
    def points(values: Any) -> list[Any]:
        return [point and point._asdict() for point in values]

    return {
        "runs": [run.as_json() for run in runs],
        "differences": [{"group": each.group, "name": each.name, "values": list(each.values)} for each in differences],
        "metrics": [{"metric": each.metric, "best": points(each.best), "last": points(each.last)} for each in metrics],
        "files": [str(file) for file in files if file],
    }


def _print_tables(labels: list[str], differences: list[Difference], metrics: list[MetricComparison]) -> None:
    columns = terminal_width()
    rows = [
        [each.metric, label, *map(format_point, points)]
        for each in metrics
        for label, points in (("best", each.best), ("last", each.last))
    ]
    print_line("\n".join(align_columns(["metric", "", *labels], rows, width=columns)) + "\n")
    for group in dict.fromkeys(each.group for each in differences):
        rows = [[each.name, *map(format_value, each.values)] for each in differences if each.group == group]
        print_line("\n".join(align_columns([group, *labels], rows, width=columns)) + "\n")
    if not differences:
        print_line("Nothing differs in settings, code, data or environment.")
