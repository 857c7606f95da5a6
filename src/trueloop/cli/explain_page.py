"""What `trueloop explain` prints: the page of a failure or of an error, or the answer to a traceback."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from trueloop.app.explain.explain_error import Explanation, MatchedError
from trueloop.app.explain.tracebacks import ErrorText
from trueloop.app.sanitizer.live_findings import COLOURS
from trueloop.core.formatting import replace_unprintable
from trueloop.failures.failure import Failure
from trueloop.failures.load import Entry, error_page, known_errors
from trueloop.failures.page import join_wrapped_lines, split_sections
from trueloop.failures.pytorch_error import KnownError

WHOLE: Final = 3  # errors that are explained in full
HOW: Final = {"raised": "", "worker": "in a loader's worker: ", "cause": "its cause: ", "context": "before that: "}
MESSAGE: Final = 300  # characters; some name every parameter of the model


def print_parts(parts: Iterable[RenderableType]) -> None:
    """Print a page, without blanks at the ends of lines."""
    console = Console(highlight=False)
    with console.capture() as printed:
        for part in parts:
            console.print(part)
    for line in printed.get().splitlines():
        console.file.write(line.rstrip() + "\n")


def failure_page(entry: Entry) -> Iterator[RenderableType]:
    """Yield the page of a silent failure, from top to bottom."""
    failure = entry.failure
    yield Text.assemble((entry.code, COLOURS[failure.severity]), " ", (failure.title, "bold"))
    how = " and ".join(f"trueloop {name}" for name in finders(failure))
    yield Text(f"{failure.severity} · {entry.family}/{entry.slug} · found by {how or 'nobody yet'}\n", "dim")
    for heading, text in split_sections(failure.doc):
        if heading:
            yield Text(heading, "bold cyan")
        yield Padding(Text(join_wrapped_lines(text)), (0, 0, 1, 2 if heading else 0))
    for heading, script in (("A program that has it", failure.bad), ("The same without it", failure.good)):
        yield Text(heading, "bold cyan")
        code = inspect.cleandoc(script)
        yield Padding(Syntax(code, "python", background_color="default", word_wrap=True), (0, 0, 1, 2))
    yield Text.assemble(("In short: ", "bold green"), failure.fix)
    if failure.inject is not None:
        yield Text(f"With its measured curves: trueloop lab, or {entry.page} of the documentation", "dim")


def finders(failure: Failure) -> list[str]:
    """Return the commands that find a failure."""
    ways = {"run": failure.detector, "lint": failure.rule, "doctor": failure.checked_by_doctor}
    return [name for name, way in ways.items() if way]


def error_page_of(kind: str, known: KnownError) -> Iterator[RenderableType]:
    """Yield the page of an error that torch raises."""
    yield Text(known.title, "bold")
    yield Text(f"{' or '.join(sorted(known.exception_types))} · raised by torch · {kind}\n", "dim")
    yield Text(join_wrapped_lines(error_page(kind)))
    yield Text("\nWith its traceback, the answer is about your line: trueloop explain train.log", "dim")


def answered(answer: Explanation) -> Iterator[RenderableType]:
    """Yield the answer to a text: known errors, failures it names, and what is not known."""
    for number, told in enumerate(answer.errors):
        yield from _error(told) if number < WHOLE else [Text(f"{_line(told.error)} ({told.kind})")]
    for error in answer.ours:
        what, *more = error.message.splitlines() or [""]
        yield Text.assemble((f"{error.type}: ", "bold red"), replace_unprintable(what))
        yield from (Text(f"  {replace_unprintable(line)}") for line in more)
        yield Text("  It is trueloop's own: what it says is what to do.\n", "dim")
    if len(answer.failures) == 1:
        yield from failure_page(answer.failures[0])
    else:
        for entry in answer.failures:
            text = Text.assemble((entry.code, COLOURS[entry.failure.severity]), f" {entry.failure.title}")
            yield text.append(f"\n  fix: {entry.failure.fix}\n  more: trueloop explain {entry.code}")
    if not answer.found:
        yield from _nothing(answer)


def _error(told: MatchedError) -> Iterator[RenderableType]:
    yield Text(_line(told.error), "bold red")
    site = told.site
    where = [f"{site.path}:{site.line}" + (f" in {site.function}" if site.function else "")] if site else []
    ranks = [f"on {'rank' if len(told.error.ranks) == 1 else 'ranks'} {', '.join(map(str, told.error.ranks))}"]
    parts = [told.entry.title, *map(replace_unprintable, where), *(ranks if told.error.ranks else []), told.kind]
    yield Text(" · ".join(parts) + "\n", "dim")
    if told.meaning:
        yield Padding(Text(replace_unprintable(told.meaning)), (0, 0, 0, 2))
        yield Padding(Text.assemble(("fix: ", "bold green"), replace_unprintable(told.fix)), (0, 0, 1, 2))
    yield Padding(Text(join_wrapped_lines(error_page(told.kind))), (0, 0, 1, 2))


def _line(error: ErrorText) -> str:
    message = replace_unprintable(" ".join(error.message.split()))
    short = message if len(message) <= MESSAGE else f"{message[: MESSAGE - 3]}..."
    return f"{HOW[error.how]}{error.type}: {short}" if error.type else short


def _nothing(answer: Explanation) -> Iterator[RenderableType]:
    named = [error for error in answer.unknown if error.type]
    if named:
        yield Text(_line(named[-1]), "bold red")
        yield Text("This is no error of torch's that is known here, and nothing else in the text is.")
    else:
        yield Text("There is no error in this text that is known here.")
    for kind in answer.nearest:
        yield Text(f"  Near to it: {known_errors()[kind].title} (trueloop explain {kind})")
    yield Text("`trueloop run train.py` explains an error with the tensors and lines of the program.", "dim")
