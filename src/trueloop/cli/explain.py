"""`trueloop explain GRD001`: the page of a silent failure, or of an error in a traceback."""

import io
import json as json_format
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from trueloop.app.explain.explain_error import explain_text
from trueloop.app.option_types import Flag
from trueloop.cli.explain_page import explanation_page, failure_page, print_parts, pytorch_error_page
from trueloop.cli.failures import as_record
from trueloop.cli.program_output import read_file, read_stream
from trueloop.core.paths import is_file
from trueloop.failures.load import error_page, find_failure, known_errors
from trueloop.failures.selection import get_failure


def explain_command(
    what: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    json: Flag = False,
    echo: Flag = False,
) -> int:
    """Explain a silent failure, or an error that a program has printed.

    Returns:
        The exit code: 0, or 1 if the text contains no known error.

    Args:
        what: What to explain: a code (GRD001), a name (never-cleared), a kind of error (shape-mismatch), a message in
            quotes, or a file with a traceback, log or notebook. - or a pipe reads standard input.
        json: Print one JSON object and nothing else.
        echo: Print standard input while it is read; with --json, to standard error.
    """
    text = _text_to_search(what, echo=echo, json=json)
    if text is not None:
        explanation = explain_text(text)
        if json:
            print(json_format.dumps(explanation.to_json(), indent=2))
        else:
            print_parts(explanation_page(explanation))
        return 0 if explanation.has_known_errors else 1
    name = what or ""
    kind = name.lower().replace("_", "-")
    known_error = known_errors().get(kind) if find_failure(kind) is None else None
    if known_error is not None:
        record = {"kind": kind, "title": known_error.title, "page": error_page(kind)}
    else:
        entry = get_failure(name)
        details = {"site": entry.page, "page": entry.failure.doc, "bad": entry.failure.bad, "good": entry.failure.good}
        record = {**as_record(entry), **details}
    if json:
        print(json_format.dumps(record, indent=2))
    else:
        print_parts(pytorch_error_page(kind, known_error) if known_error else failure_page(get_failure(name)))
    return 0


def _text_to_search(what: str | None, *, echo: bool, json: bool) -> str | None:
    """Return the text in which to search for errors; None if `what` names a failure or a kind of error.

    Raises:
        CycloptsError: there is neither an argument nor piped text.
    """
    if what == "-" or (what is None and sys.stdin is not None and not sys.stdin.isatty()):
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a program may print anything
        text = read_stream(sys.stdin, (sys.stderr if json else sys.stdout) if echo else None)
        if text.strip() or what == "-":
            return text
    if what is None:
        raise CycloptsError(
            msg="Name a failure (GRD001), or pipe an error in: python train.py 2>&1 | trueloop explain.",
            app=App(name="trueloop explain"),
        )
    if find_failure(what.replace("_", "-")) is not None or what.lower().replace("_", "-") in known_errors():
        return None
    if is_file(Path(what)):
        return read_file(Path(what))
    return what if any(char.isspace() for char in what) else None
