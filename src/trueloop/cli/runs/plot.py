"""`trueloop runs plot`: the curves of runs as a PNG, an HTML page, or lines of blocks in the terminal."""

from pathlib import Path

from trueloop.app.option_types import Flag
from trueloop.cli.columns import can_encode, print_line, terminal_width
from trueloop.cli.run_cells import unique_labels
from trueloop.cli.runs import Root
from trueloop.cli.sparks import ASCII, BLOCKS, draw_panel
from trueloop.core.errors import InvalidConfig
from trueloop.runs.journal import read_journal
from trueloop.runs.journal_lines import encode_line
from trueloop.runs.queries.overview import read_overview, require_readable
from trueloop.runs.queries.pages import run_panels, save_html, save_png
from trueloop.runs.queries.resolve import find_run


def plot_command(
    *runs: str, png: Path | None = None, html: Path | None = None, root: Root = Path("runs"), json: Flag = False
) -> None:
    """Plot the curves of one or several runs; in the terminal if neither --png nor --html is passed.

    Args:
        runs: Runs to plot, each by path, name, or the beginning of a name or run id.
        png: Write the plots to this PNG file.
        html: Write the plots to this HTML page, which needs no network.
        root: Folder in which runs are looked up by name.
        json: Print one JSON object with the plotted points and the written files.
    """
    if not runs:
        raise InvalidConfig(
            "The run is missing.", fix="Run `trueloop runs plot RUN`; `trueloop runs list` lists the runs."
        )
    overviews = [require_readable(read_overview(find_run(name, root))) for name in runs]
    histories = dict(zip(unique_labels(overviews), (read_journal(run.path) for run in overviews), strict=True))
    if png:
        save_png(histories, png)
    if html:
        save_html(histories, html)
    files = {kind: str(file) for kind, file in (("png", png), ("html", html)) if file}
    panels = run_panels(histories)
    if json:
        records = [
            {
                "name": panel.name,
                "title": panel.title,
                "curves": [{"label": c.label, "update": list(c.x), "value": list(c.y)} for c in panel.curves],
            }
            for panel in panels
        ]
        print(encode_line({"files": files, "panels": records}), end="")
        return
    for kind, file in files.items():
        print_line(f"{kind}  {file}")
    if not files:
        blocks = BLOCKS if can_encode(BLOCKS) else ASCII
        print_line(
            "\n\n".join("\n".join(draw_panel(panel, terminal_width() or 100, blocks)) for panel in panels)
            or "These runs have no curves yet."
        )
