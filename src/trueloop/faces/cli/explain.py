"""`trueloop explain GRD001`: the page of one silent failure, as its file in the catalogue tells it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from trueloop.catalogue.load import Entry
from trueloop.catalogue.page import reflowed, sections
from trueloop.faces.choice import entry_named
from trueloop.faces.live import COLOURS


def explain_command(failure: str) -> None:
    """Print the page of a silent failure.

    Args:
        failure: Its code or its name: GRD001, never-cleared.
    """
    entry, console = entry_named(failure), Console(highlight=False)
    with console.capture() as printed:
        for part in page(entry):
            console.print(part)
    for line in printed.get().splitlines():
        console.file.write(line.rstrip() + "\n")


def page(entry: Entry) -> Iterator[RenderableType]:
    """Yield what is printed, from top to bottom."""
    failure = entry.failure
    yield Text.assemble((entry.code, COLOURS[failure.severity]), " ", (failure.title, "bold"))
    finders = [name for name, way in (("run", failure.detector), ("lint", failure.rule)) if way]
    how = " and ".join(f"trueloop {name}" for name in finders)
    yield Text(f"{failure.severity} · {entry.family}/{entry.slug} · found by {how or 'nobody yet'}\n", "dim")
    for heading, text in sections(failure.doc):
        if heading:
            yield Text(heading, "bold cyan")
        yield Padding(Text(reflowed(text)), (0, 0, 1, 2 if heading else 0))
    for heading, script in (("A program that has it", failure.bad), ("The same without it", failure.good)):
        yield Text(heading, "bold cyan")
        code = inspect.cleandoc(script)
        yield Padding(Syntax(code, "python", background_color="default", word_wrap=True), (0, 0, 1, 2))
    yield Text.assemble(("In short: ", "bold green"), failure.fix)
