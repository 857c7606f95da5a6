"""A failure's page, as its docstring tells it, taken apart for whoever shows it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from trueloop.failures.load import SECTIONS

_ADDRESS = re.compile(r"https://\S+")


def split_sections(doc: str) -> Iterator[tuple[str, str]]:
    """Cut a page into its headings, "" for what is above the first, and the texts below them."""
    heading, lines = "", list[str]()
    for line in [*inspect.cleandoc(doc).splitlines(), None]:
        begins = line is not None and bool(line.strip()) and line[0] != " " and bool(heading or lines)
        if line is None or (begins and line.strip() in SECTIONS):
            yield heading, inspect.cleandoc("\n" + "\n".join(lines))
            heading, lines = line or "", []
        else:
            lines.append(line)


def join_wrapped_lines(text: str) -> str:
    """Put the lines of each paragraph together, so that they are wrapped once; lists and indented code stay.

    A line ends where an address does: of several references each begins its own.
    """
    lines = list[str]()
    for line in text.splitlines():
        goes_on = bool(lines) and lines[-1] and not lines[-1].startswith(" ") and not _ends_with_address(lines[-1])
        if goes_on and line and not line.startswith((" ", "- ", "* ", "|")):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(lines)


def render_markdown(doc: str) -> str:
    """Return a page as Markdown, for whoever shows help beside a finding."""
    parts: list[str] = []
    for heading, text in split_sections(doc):
        words = join_wrapped_lines(text)
        if heading == "References":
            words = "\n".join(f"- {line}" for line in words.splitlines() if line)
        parts.append(f"### {heading}\n\n{words}" if heading else words)
    return "\n\n".join(parts)


def first_reference_url(doc: str) -> str | None:
    """Return the address of a page's first reference, most often torch's own documentation; None where it has none."""
    found = _ADDRESS.search(dict(split_sections(doc)).get("References", ""))
    return found.group().rstrip(".,;)") if found else None


def _ends_with_address(line: str) -> bool:
    return bool(_ADDRESS.fullmatch(line.rsplit(" ", 1)[-1]))
