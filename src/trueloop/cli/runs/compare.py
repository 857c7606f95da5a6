"""`trueloop runs compare`: what differs between runs, and how far each came."""

from pathlib import Path
from typing import Any

from trueloop.app.option_types import Flag
from trueloop.cli.columns import align_columns, print_line, terminal_width
from trueloop.cli.run_cells import labels_of
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
    """Print what differs between runs in settings, code, data and environment, and what they measured.

    Args:
        runs: Two or more: paths, names, or the beginning of a name or run id.
        png: Draw their curves over each other into this file.
        html: The same as a page, with the tables.
        root: Where runs lie that are named without a path.
        json: Print one JSON object and nothing else.
    """
    if len(runs) < 2:
        raise InvalidConfig("There is nothing to compare.", fix="Name two runs: trueloop runs compare A B.")
    seen = [require_readable(read_overview(find_run(word, root))) for word in runs]
    histories = [read_journal(run.path) for run in seen]
    differ = find_differences(histories)
    named: dict[str, Mode | None] = {name: metric_mode(name, seen) for run in seen for name in run.metrics}
    metrics = compare_metrics(histories, {**named, **metric_modes(histories)})
    drawn = dict(zip(labels_of(seen), histories, strict=True))
    if png:
        save_png(drawn, png)
    if html:
        save_html(drawn, html, differences=differ, metrics=metrics)
    if json:
        print(encode_line(_record(seen, differ, metrics, files=[png, html])), end="")
        return
    _print(list(drawn), differ, metrics)
    for word, file in (("png", png), ("html", html)):
        if file:
            print_line(f"{word}  {file}")


def _record(
    seen: list[Overview], differ: list[Difference], metrics: list[MetricComparison], *, files: list[Path | None]
) -> dict[str, Any]:
    def points(found: Any) -> list[Any]:
        return [point and point._asdict() for point in found]

    return {
        "runs": [run.as_json() for run in seen],
        "differences": [{"group": each.group, "name": each.name, "values": list(each.values)} for each in differ],
        "metrics": [{"metric": each.metric, "best": points(each.best), "last": points(each.last)} for each in metrics],
        "files": [str(file) for file in files if file],
    }


def _print(labels: list[str], differ: list[Difference], metrics: list[MetricComparison]) -> None:
    columns = terminal_width()
    rows = [
        [each.metric, word, *map(format_point, found)]
        for each in metrics
        for word, found in (("best", each.best), ("last", each.last))
    ]
    print_line("\n".join(align_columns(["metric", "", *labels], rows, most=columns)) + "\n")
    for group in dict.fromkeys(each.group for each in differ):
        rows = [[each.name, *map(format_value, each.values)] for each in differ if each.group == group]
        print_line("\n".join(align_columns([group, *labels], rows, most=columns)) + "\n")
    if not differ:
        print_line("Nothing differs in settings, code, data or environment.")
