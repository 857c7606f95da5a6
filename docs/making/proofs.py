"""Write the page with the source code of the tests that the guides name, so that every promise links to its test."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = "proofs.md"
NAMED: Final = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def find_test_names(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return every test that a text names as (path, function), sorted by path."""
    return sorted({(match[1], match[2]) for text in texts for match in NAMED.finditer(text)})


def add_links(markdown: str, page: str) -> str:
    """Return Markdown in which the name of a test is a link to its source code."""
    proofs_page = os.path.relpath(PAGE, os.path.dirname(page) or ".")  # noqa: PTH120
    return NAMED.sub(lambda match: f"[`{match[2]}`]({proofs_page}#{anchor(match[1], match[2])})", markdown)


def anchor(path: str, name: str) -> str:
    """Return the anchor of a test on the page."""
    return f"{Path(path).stem}-{name}".replace("_", "-")


def source(path: str, name: str) -> str:
    """Return the source code of a test, including its decorators.

    Raises:
        LookupError: there is no such test.
    """
    text = _text(path)
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise LookupError(f"A guide names the test {name}, which {path} does not contain.")


def pages(guides: Iterable[str]) -> dict[str, str]:
    """Return the page with all tests that the guides name."""
    blocks = [
        "# The tests behind the promises",
        (
            "This page has the source code of every test that a guide names. `make test` runs all of them; "
            "`.venv/bin/python -m pytest PATH -k NAME` runs one."
        ),
    ]
    file = ""
    for path, name in find_test_names(guides):
        if path != file:
            blocks.append(f"## {path}")
            file = path
        blocks += [f"### {name} {{ #{anchor(path, name)} }}", f"```python\n{source(path, name)}\n```"]
    return {PAGE: "\n\n".join(blocks) + "\n"}


@cache
def _text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(_text(path))
