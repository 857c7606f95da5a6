"""Splits the page of a failure into sections and renders it as Markdown."""

import inspect
import re
from collections.abc import Iterator

from trueloop.failures.load import SECTIONS

_ADDRESS = re.compile(r"https://\S+")


def split_sections(doc: str) -> Iterator[tuple[str, str]]:
    """Yield each heading of a page with its text; the heading "" stands for the text above the first one."""
    heading, lines = "", list[str]()
    for line in [*inspect.cleandoc(doc).splitlines(), None]:
        is_heading = line is not None and bool(line.strip()) and line[0] != " " and bool(heading or lines)
        if line is None or (is_heading and line.strip() in SECTIONS):
            yield heading, inspect.cleandoc("\n" + "\n".join(lines))
            heading, lines = line or "", []
        else:
            lines.append(line)


def join_wrapped_lines(text: str) -> str:
    """Join the lines of each paragraph; lists and indented code are unchanged.

    A line that ends with an address or an arXiv number is not joined with the next one: each reference keeps its line.
    """
    lines = list[str]()
    for line in text.splitlines():
        continues = bool(lines) and lines[-1] and not lines[-1].startswith(" ") and not _ends_with_address(lines[-1])
        if continues and line and not line.startswith((" ", "- ", "* ", "|")):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(lines)


def render_markdown(doc: str) -> str:
    """Return a page as Markdown, for tools that show help next to a finding."""
    parts: list[str] = []
    for heading, text in split_sections(doc):
        body = join_wrapped_lines(text)
        if heading == "References":
            body = "\n".join(f"- {line}" for line in body.splitlines() if line)
        parts.append(f"### {heading}\n\n{body}" if heading else body)
    return "\n\n".join(parts)


def first_reference_url(doc: str) -> str | None:
    """Return the address of the first reference, mostly the PyTorch documentation; None if there is none."""
    address = _ADDRESS.search(dict(split_sections(doc)).get("References", ""))
    return address.group().rstrip(".,;)") if address else None


def _ends_with_address(line: str) -> bool:
    last_word = line.rsplit(" ", 1)[-1]
    return bool(_ADDRESS.fullmatch(last_word)) or last_word.startswith("arXiv:")
