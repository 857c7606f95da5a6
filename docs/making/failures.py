"""Write the catalogue's pages: one per silent failure, an index, and one about the errors that PyTorch raises."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

import curves
import signatures
from prose import as_markdown, in_cell

from trueloop.failures.load import Entry, catalogue, error_page, known_errors
from trueloop.failures.page import join_wrapped_lines, split_sections

INDEX: Final = "failures/index.md"
ERRORS: Final = "failures/errors.md"
NO_CURVES: Final = (
    "The script of [the lab](../lab.md) has no single operation that could be broken this way, so there are no curves "
    "to show; see the two programs below."
)
NO_RULE: Final = "`trueloop lint` has no rule for this failure: source code alone does not prove it."
NO_DETECTOR: Final = "`trueloop run` does not detect this failure: no event at run time proves it."
MARK: Final = {True: "yes", False: ""}
_CODE: Final = re.compile(r"(```.*?^```$|^ {4}.*?$)|(?<![\w`/\[-])`([A-Z]{3}\d{3})`(?![\w\]])", re.M | re.DOTALL)


def path_of(entry: Entry) -> str:
    """Return the path of the page of a failure, which ends with the failure's slug."""
    return entry.page.replace(".html", ".md")


def pages() -> dict[str, str]:
    """Return the Markdown of every page by its path."""
    entries = catalogue().values()
    return {INDEX: _index(), ERRORS: _errors(), **{path_of(entry): _page(entry) for entry in entries}}


def navigation() -> list[Any]:
    """Return the pages by family, in the format of `nav` in mkdocs.yml."""
    families = groupby(catalogue().values(), key=lambda entry: entry.family)
    return [
        {"All failures": INDEX},
        *(
            {family.capitalize(): [{f"{e.code} {e.failure.title}": path_of(e)} for e in members]}
            for family, members in families
        ),
        {"Errors that PyTorch raises": ERRORS},
    ]


def add_links(markdown: str, page: str) -> str:
    """Return Markdown in which every failure code in backquotes is a link to its page."""

    def link(match: re.Match[str]) -> str:
        entry = catalogue().get(match[2] or "")
        if match[1] or entry is None or path_of(entry) == page:
            return match[0]
        return f"[`{match[2]}`]({os.path.relpath(path_of(entry), os.path.dirname(page) or '.')})"  # noqa: PTH120

    return _CODE.sub(link, markdown)


def _page(entry: Entry) -> str:
    failure = entry.failure
    parts = dict(split_sections(failure.doc))
    blocks = [
        f"# {failure.title}",
        _facts(entry),
        as_markdown(join_wrapped_lines(parts.pop(""))),
        f"**In short:** {as_markdown(failure.fix)}",
        *_section("What you see", parts.pop("What you see")),
        *_signature(entry),
    ]
    references = parts.pop("References")
    for heading, text in parts.items():
        blocks += _section(heading, text)
    blocks += ["## A program with it", _fenced(failure.bad), "## The program without it", _fenced(failure.good)]
    blocks += [
        "## References",
        "\n".join(f"- {as_markdown(line)}" for line in join_wrapped_lines(references).splitlines() if line),
    ]
    blocks += ["## In a terminal", _terminal(entry)]
    return "\n\n".join(blocks) + "\n"


def _facts(entry: Entry) -> str:
    severity = entry.failure.severity.value
    commands = ", ".join(f"`trueloop {command}`" for command in _finders(entry)) or "no command yet"
    return (
        f'<p class="facts" markdown="1"><span class="severity {severity}">{severity}</span> &nbsp;`{entry.code}` · '
        f"{entry.family}/{entry.slug} · found by {commands}</p>"
    )


def _finders(entry: Entry) -> list[str]:
    finders = {"run": entry.failure.detector, "lint": entry.failure.rule, "doctor": entry.failure.checked_by_doctor}
    return [name for name, finder in finders.items() if finder]


def _section(heading: str, text: str) -> Iterator[str]:
    yield f"## {heading}"
    yield as_markdown(join_wrapped_lines(text))


def _signature(entry: Entry) -> Iterator[str]:
    """Yield the measured curves of a failure, if it can be injected into the teaching script."""
    signature = signatures.read_signature(entry)
    yield "## What it looks like"
    if signature is None:
        yield NO_CURVES
        return
    changes = "; ".join(filter(None, map(_change, signature["changes"])))
    yield (
        f"The script of [the lab](../lab.md) trains a small network on points in the plane, here without and with "
        f"this failure: {changes}. The lines are medians over {signature['seeds']} seeds; the bands reach from the "
        "lowest to the highest value."
    )
    yield '<p class="key"><i class="healthy"></i>healthy<i class="broken"></i>broken</p>'
    yield curves.figure(signature)
    if signature["raised"]:
        yield f"The broken script ends early: `{signature['raised']}`"
    if signature["message"]:
        yield f"`trueloop run` reports for the broken script ({signature['found']} of {signature['seeds']} seeds):"
        yield f"> {as_markdown(signature['message'])}"


def _change(change: dict[str, Any]) -> str:
    before, after = (f"`{change[key]}`" if change[key] else "" for key in ("before", "after"))
    match change["kind"]:
        case "left out":
            return f"{before} is left out"
        case "added":
            return f"{after} is added"
        case _:
            return f"{before} becomes {after}"


def _fenced(script: str) -> str:
    return f"```python\n{inspect.cleandoc(script)}\n```"


def _terminal(entry: Entry) -> str:
    lines = [f"trueloop explain {entry.code}", *(["trueloop run train.py"] if entry.failure.detector else [])]
    lines += [f"trueloop lint --select {entry.code} src/"] if entry.failure.rule else []
    lines += ["trueloop doctor"] if entry.failure.checked_by_doctor else []
    absent = [
        *([NO_RULE] if entry.failure.rule is None else []),
        *([NO_DETECTOR] if not entry.failure.detector else []),
    ]
    return "\n\n".join(["```console\n" + "".join(f"$ {line}\n" for line in lines) + "```", *absent])


def _index() -> str:
    entries = catalogue()
    blocks = [
        "# Silent failures",
        (
            f"These are all {len(entries)} mistakes that trueloop knows and that raise no exception. Each page says "
            "what you see, why PyTorch raises no error, how to fix the mistake, and which correct programs look "
            "similar. For failures that can be injected into a training script, it shows curves measured with and "
            "without the failure. `trueloop failures` prints this list, and `trueloop explain CODE` prints a page."
        ),
        (
            "`run`: [the sanitizer](../sanitizer.md) finds it while a script trains. `lint`: "
            "[the linter](../linter.md) finds it in source code. `doctor`: [the doctor](../doctor.md) finds it before "
            "a run. A picture: it can be switched on in [the lab](../lab.md); the picture shows the quantity that "
            "differs most between healthy (blue) and broken (red, dashed) runs. `error`: no correct program does this. "
            "`warning`: correct programs rarely do this. `note`: slow or fragile, but not wrong."
        ),
    ]
    for family, members in groupby(entries.values(), key=lambda entry: entry.family):
        blocks += [f"## {family.capitalize()}", _table(members)]
    blocks += [
        "## Errors that PyTorch raises",
        f"trueloop also [explains](errors.md) {len(known_errors())} errors that PyTorch raises.",
    ]
    return "\n\n".join(blocks) + "\n"


def _table(members: Iterator[Entry]) -> str:
    rows = ["| code | failure | severity | run | lint | doctor | measured |", "|---|---|---|---|---|---|---|"]
    for entry in members:
        failure = entry.failure
        finders = (failure.detector, failure.rule, failure.checked_by_doctor or None)
        signature = signatures.read_signature(entry)
        cells = " | ".join(MARK[finder is not None] for finder in finders)
        severity = f'<span class="severity {failure.severity}">{failure.severity}</span>'
        name = f'<a id="{entry.code}"></a>{entry.code}'
        picture = curves.thumb(signature) if signature else ""
        rows.append(f"| {name} | [{in_cell(failure.title)}]({entry.slug}.md) | {severity} | {cells} | {picture} |")
    return "\n".join(rows)


def _errors() -> str:
    blocks = [
        "# Errors that PyTorch raises",
        (
            "These errors are not silent, but hard to read. `python train.py 2>&1 | trueloop explain` explains the "
            "error in a traceback ([details](../explain.md)); `trueloop run` adds the shapes and the lines of your "
            "program."
        ),
    ]
    for kind, known_error in known_errors().items():
        types = " or ".join(f"`{name}`" for name in sorted(known_error.exception_types))
        blocks += [f"## {known_error.title} {{ #{kind} }}", f"{types} · `trueloop explain {kind}`"]
        blocks.append(as_markdown(join_wrapped_lines(inspect.cleandoc(error_page(kind)))))
    return "\n\n".join(blocks) + "\n"
