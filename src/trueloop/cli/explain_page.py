"""Pages of `trueloop explain`: on a silent failure, on an error that PyTorch raises, or on a traceback."""

import inspect
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from trueloop.app.explain.explain_error import Explanation, MatchedError
from trueloop.app.explain.tracebacks import ErrorText
from trueloop.app.sanitizer.live_findings import COLOURS
from trueloop.cli.columns import strip_line_ends
from trueloop.core.formatting import replace_unprintable
from trueloop.failures.failure import Failure
from trueloop.failures.load import Entry, error_page, known_errors
from trueloop.failures.page import join_wrapped_lines, split_sections
from trueloop.failures.pytorch_error import KnownError

MAX_FULL_PAGES: Final = 3  # number of errors to explain in full
ROLE_PREFIXES: Final = {
    "raised": "",
    "worker": "in a loader's worker: ",
    "cause": "its cause: ",
    "context": "before that: ",
}
MAX_MESSAGE_CHARS: Final = 300  # some messages name every parameter of the model


def print_parts(parts: Iterable[Text]) -> None:
    """Print a page without trailing blanks; only the paragraphs from `_prose` are wrapped."""
    console = Console(highlight=False)
    with strip_line_ends(console):
        for part in parts:
            console.print(part, soft_wrap=True)


def _prose(text: str, indent: int = 0) -> Text:
    """Wrap the paragraphs of a page to the terminal's width; indented code and addresses are not broken."""
    width, lead = Console().width - indent, " " * indent
    lines: list[str] = []
    for line in text.splitlines():
        bullet = "  " if line.startswith(("- ", "* ")) else ""
        wrapped = textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=bullet)
        lines += [line] if line.startswith(" ") else wrapped or [""]
    return Text("\n".join(f"{lead}{line}".rstrip() for line in lines) + "\n")


def _code(script: str) -> Text:
    """Highlight a script, indented by two columns; its lines are not wrapped."""
    text = Syntax("", "python", background_color="default").highlight(inspect.cleandoc(script))
    text.rstrip()
    return Text("\n").join(Text("  ") + line for line in text.split("\n")) + Text("\n")


def failure_page(entry: Entry) -> Iterator[Text]:
    """Yield the page of a silent failure, from top to bottom."""
    failure = entry.failure
    yield Text.assemble((entry.code, COLOURS[failure.severity]), " ", (failure.title, "bold"))
    commands = " and ".join(f"trueloop {name}" for name in finding_commands(failure))
    yield Text(f"{failure.severity} · {entry.family}/{entry.slug} · found by {commands or 'no command yet'}\n", "dim")
    for heading, text in split_sections(failure.doc):
        if heading:
            yield Text(heading, "bold cyan")
        yield _prose(join_wrapped_lines(text), 2 if heading else 0)
    for heading, script in (("A program with it", failure.bad), ("The program without it", failure.good)):
        yield Text(heading, "bold cyan")
        yield _code(script)
    yield Text.assemble(("In short: ", "bold green"), failure.fix)
    if failure.inject is not None:
        yield Text(f"With its measured curves: trueloop lab, or {entry.page} of the documentation", "dim")


def finding_commands(failure: Failure) -> list[str]:
    """Return the commands that find a failure."""
    finders = {"run": failure.detector, "lint": failure.rule, "doctor": failure.checked_by_doctor}
    return [name for name, finder in finders.items() if finder]


def pytorch_error_page(kind: str, known_error: KnownError) -> Iterator[Text]:
    """Yield the page of an error that PyTorch raises."""
    yield Text(known_error.title, "bold")
    yield Text(f"{' or '.join(sorted(known_error.exception_types))} · raised by PyTorch · {kind}\n", "dim")
    yield _prose(join_wrapped_lines(error_page(kind)))
    yield Text("To find the line of your program, pass the traceback: trueloop explain train.log", "dim")


def explanation_page(explanation: Explanation) -> Iterator[Text]:
    """Yield the page for a text: its known errors, the failures that it names, and its unknown errors."""
    for index, matched in enumerate(explanation.errors):
        summary = Text(f"{_first_line(matched.error)} ({matched.kind})")
        yield from _matched_error(matched) if index < MAX_FULL_PAGES else [summary]
    for error in explanation.trueloop_errors:
        first, *others = error.message.splitlines() or [""]
        yield Text.assemble((f"{error.type}: ", "bold red"), replace_unprintable(first))
        yield from (Text(f"  {replace_unprintable(line)}") for line in others)
        yield Text("  This is an error of trueloop; its message says what to do.\n", "dim")
    if len(explanation.failures) == 1:
        yield from failure_page(explanation.failures[0])
    else:
        for entry in explanation.failures:
            text = Text.assemble((entry.code, COLOURS[entry.failure.severity]), f" {entry.failure.title}")
            yield text.append(f"\n  fix: {entry.failure.fix}\n  more: trueloop explain {entry.code}")
    if not explanation.has_known_errors:
        yield from _no_known_error(explanation)


def _matched_error(matched: MatchedError) -> Iterator[Text]:
    yield Text(_first_line(matched.error), "bold red")
    line = matched.location
    location = [f"{line.path}:{line.line}" + (f" in {line.function}" if line.function else "")] if line else []
    ranks = [f"on {'rank' if len(matched.error.ranks) == 1 else 'ranks'} {', '.join(map(str, matched.error.ranks))}"]
    parts = [
        matched.entry.title,
        *map(replace_unprintable, location),
        *(ranks if matched.error.ranks else []),
        matched.kind,
    ]
    yield Text(" · ".join(parts) + "\n", "dim")
    if matched.meaning:
        meaning = _prose(replace_unprintable(matched.meaning), 2)
        meaning.rstrip()
        yield meaning
        fix = _prose(f"fix: {replace_unprintable(matched.fix)}", 2)
        fix.stylize("bold green", 2, 6)
        yield fix
    yield _prose(join_wrapped_lines(error_page(matched.kind)), 2)


def _first_line(error: ErrorText) -> str:
    message = replace_unprintable(" ".join(error.message.split()))
    short = message if len(message) <= MAX_MESSAGE_CHARS else f"{message[: MAX_MESSAGE_CHARS - 3]}..."
    return f"{ROLE_PREFIXES[error.role]}{error.type}: {short}" if error.type else short


def _no_known_error(explanation: Explanation) -> Iterator[Text]:
    typed_errors = [error for error in explanation.unknown if error.type]
    if typed_errors:
        yield Text(_first_line(typed_errors[-1]), "bold red")
        yield Text("trueloop has no page on this error, and the text names no silent failure.")
    else:
        yield Text("This text contains no error that trueloop knows.")
    for kind in explanation.nearest:
        yield Text(f"  Similar: {known_errors()[kind].title} (trueloop explain {kind})")
    yield Text("`trueloop run train.py` explains an error with the tensors and lines of the program.", "dim")
