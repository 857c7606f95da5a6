"""The cheat sheet as a page of the documentation: ``python -m trueloop.lab.cheatsheet > docs/cheatsheet.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from trueloop.lab.teaching import cheat_sheet

HEAD = """<!-- Written by python -m trueloop.lab.cheatsheet; a test holds it to what that writes. -->

# Cheat sheet

What the lab's page of this name shows, and prints on two pages of A4.
"""


def render_markdown() -> str:
    """Return the page."""
    parts = [HEAD, "## Words\n", render_table(("word", "meaning"), cheat_sheet.terms().items())]
    parts += ["## Counts\n", f"For {cheat_sheet.sizes()}:\n"]
    parts += [render_table(("count", "what it is", "example"), ((c.name, c.says, c.example) for c in cheat_sheet.counts()))]
    parts += ["## Loops\n"]
    for template in cheat_sheet.templates():
        parts += [f"### {template.title}\n", f"```python\n{template.text.strip()}\n```\n"]
    parts += ["## Silent failures\n", "`trueloop explain CODE` tells all about one.\n"]
    bugs = ((bug.code, bug.title, bug.symptom, bug.fix) for bug in cheat_sheet.bugs())
    parts += [render_table(("code", "what happens", "symptom", "what to do"), bugs)]
    parts += ["## DataLoader arguments\n"]
    arguments = ((f"`{a.name}`", a.default and f"`{a.default}`", a.says) for a in cheat_sheet.arguments())
    parts += [render_table(("argument", "default", "what for"), arguments)]
    return "\n".join(parts)


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write one table; a stroke in a cell stays a stroke."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(render_markdown())
