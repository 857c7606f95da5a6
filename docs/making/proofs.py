"""Shows the tests that the guides name: what is promised leads to the source of what holds it."""

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


def named(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return every test that a text names, as (path, function), by path."""
    return sorted({(match[1], match[2]) for text in texts for match in NAMED.finditer(text)})


def linked(markdown: str, page: str) -> str:
    """Let the name of a test lead to its source."""
    to = os.path.relpath(PAGE, os.path.dirname(page) or ".")  # noqa: PTH120
    return NAMED.sub(lambda match: f"[`{match[2]}`]({to}#{anchor(match[1], match[2])})", markdown)


def anchor(path: str, name: str) -> str:
    """Return the place of a test on the page."""
    return f"{Path(path).stem}-{name}".replace("_", "-")


def source(path: str, name: str) -> str:
    """Return the text of a test, decorators included.

    Raises:
        LookupError: there is no such test.
    """
    text = _text(path)
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise LookupError(f"{path} has no {name}; a guide names it.")


def pages(guides: Iterable[str]) -> dict[str, str]:
    """Return the page of tests."""
    blocks = [
        "# The tests behind the promises",
        (
            "Every test that a guide names, as it stands in the repository. `make test` runs them all; one of them is "
            "run by `.venv/bin/python -m pytest PATH -k NAME`."
        ),
    ]
    file = ""
    for path, name in named(guides):
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
