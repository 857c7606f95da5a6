"""The text of a selection: its pieces put together, with the imports that they use and no others."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import indent
from typing import Final, NamedTuple

from trueloop.lab.teaching.production.selection import Selection
from trueloop.lab.teaching.production.snippets import Snippet
from trueloop.lab.teaching.production.steps import LOOP, PROGRAM

STANDARD: Final = ("copy", "json", "math", "os", "time")
"""Modules that come with Python and are imported whole."""
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "pathlib": ("Path",),
    "sklearn.datasets": ("load_digits",),
    "torch": ("nn",),
    "torch.utils.data": ("DataLoader", "TensorDataset", "random_split"),
    "trueloop": (
        "Accuracy", "CheckpointConfig", "MonitorConfig", "OptimConfig", "ScheduleConfig",
        "TrainConfig", "Trainer",
    ),
    "trueloop.cli.display": ("Display",),
}  # fmt: skip
"""Module -> the names taken from it, both in the order that import sorters want."""
OWN: Final = {"pathlib": 0}
"""Which group of imports a module stands in: Python's own, or, the most, others'."""
GROUPS: Final = 2


class Span(NamedTuple):
    """Where a piece stands: lines counted from 1, the last included."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A text, and which of its lines are whose."""

    text: str
    spans: tuple[Span, ...]

    def part(self, *names: str) -> str:
        """Return the lines of these pieces alone, as they stand."""
        wanted = [span for span in self.spans if span.name in names]
        all_lines = self.text.splitlines()
        return "\n".join("\n".join(all_lines[span.first - 1 : span.last]) for span in wanted) + "\n"

    @property
    def halves(self) -> tuple[str, str]:
        """What is done before training, and the training loop with what follows."""
        begin = next(span.first for span in self.spans if span.name == LOOP[0].name)
        kept = self.text.splitlines(keepends=True)
        return "".join(kept[: begin - 1]), "".join(kept[begin - 1 :])


def write(selection: Selection, replaced: Mapping[str, str] | None = None) -> Program:
    """Write the program of a selection.

    Args:
        selection: what is on; completed by what that needs.
        replaced: texts that stand instead of pieces, by their names: another model, other data.
    """
    return put_together("Trains a small network on handwritten digits.", PROGRAM, selection, replaced or {})


def put_together(doc: str, pieces: Sequence[Snippet], selection: Selection, replaced: Mapping[str, str]) -> Program:
    """Put pieces into one text, below a docstring and the imports they need.

    Args:
        doc: the program's first line.
        pieces: in their order.
        selection: what is on; completed by what that needs.
        replaced: texts that stand instead of pieces, by their names.
    """
    on = selection.completed()
    written = [(piece, replaced.get(piece.name, piece.write(on)).strip("\n")) for piece in pieces]
    written = [(piece, text) for piece, text in written if text]
    names = _names("\n".join(indent(text, "    " * piece.depth) for piece, text in written))
    lines = [f'"""{doc}"""', "", *_imports(names), ""]
    spans: list[Span] = []
    before: tuple[Snippet, str] | None = None
    for piece, text in written:
        lines += _blank(before, (piece, text))
        first = len(lines) + 1
        lines += indent(text, "    " * piece.depth).splitlines()
        spans.append(Span(piece.name, first, len(lines)))
        before = (piece, text)
    return Program(text="\n".join(lines) + "\n", spans=tuple(spans))


def _blank(before: tuple[Snippet, str] | None, now: tuple[Snippet, str]) -> list[str]:
    """Two blank lines around a function, as Python's style guide asks; one where a piece wants to stand apart."""
    if before is None:
        return []
    if any(text.startswith(("def ", "@")) for _, text in (before, now)):
        return ["", ""]
    return [""] if now[0].apart else []


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _imports(names: set[str]) -> list[str]:
    groups: list[list[str]] = [[] for _ in range(GROUPS)]
    groups[0] += [f"import {module}" for module in STANDARD if module in names]
    groups[1] += ["import torch"] if "torch" in names else []
    for module, parts in PARTS.items():
        if wanted := [part for part in parts if part in names]:
            groups[OWN.get(module, 1)].append(_from(module, wanted))
    return "\n\n".join("\n".join(group) for group in groups if group).splitlines()


def _from(module: str, parts: Iterable[str]) -> str:
    line = f"from {module} import {', '.join(parts)}"
    if len(line) <= 88:
        return line
    return "\n".join([f"from {module} import (", *(f"    {part}," for part in parts), ")"])
