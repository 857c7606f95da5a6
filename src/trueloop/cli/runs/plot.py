"""`trueloop runs plot`: the curves of runs as a picture, a page, or lines of blocks in the terminal."""

from pathlib import Path

from trueloop.app.option_types import Flag
from trueloop.cli.columns import can_encode, print_line, terminal_width
from trueloop.cli.run_cells import labels_of
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
    """Draw the curves of one run, or of several over each other; without a file, in the terminal.

    Args:
        runs: Paths, names, or the beginning of a name or run id.
        png: Draw into this picture.
        html: Draw into this page, which needs no network.
        root: Where runs lie that are named without a path.
        json: Print one JSON object with the points that are drawn and the files that were written.
    """
    if not runs:
        raise InvalidConfig(
            "No run is named.", fix="trueloop runs plot RUN; `trueloop runs list` shows which there are."
        )
    seen = [require_readable(read_overview(find_run(word, root))) for word in runs]
    histories = dict(zip(labels_of(seen), (read_journal(run.path) for run in seen), strict=True))
    if png:
        save_png(histories, png)
    if html:
        save_html(histories, html)
    files = {word: str(file) for word, file in (("png", png), ("html", html)) if file}
    panels = run_panels(histories)
    if json:
        shown = [
            {
                "name": panel.name,
                "title": panel.title,
                "curves": [{"label": c.label, "update": list(c.x), "value": list(c.y)} for c in panel.curves],
            }
            for panel in panels
        ]
        print(encode_line({"files": files, "panels": shown}), end="")
        return
    for word, file in files.items():
        print_line(f"{word}  {file}")
    if not files:
        blocks = BLOCKS if can_encode(BLOCKS) else ASCII
        print_line(
            "\n\n".join("\n".join(draw_panel(panel, terminal_width() or 100, blocks)) for panel in panels)
            or "There is nothing to draw yet."
        )
