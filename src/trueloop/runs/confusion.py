"""The confusion matrix of a run as a coloured table; of many classes, the pairs that are mistaken most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from trueloop.core.formatting import format_count
from trueloop.core.html import Markup, element, section, table
from trueloop.core.protocols import Evaluated
from trueloop.runs.history import History

DRAWN = 30  # classes; a larger matrix is unreadable as a table
PAIRS = 30


def confusion_section(history: History) -> Markup:
    """Show the test set's matrix, else that of the best, else of the newest evaluation that has one."""
    told = _evaluation(history)
    matrix = _matrix(told.tables.get("confusion")) if told else None
    if told is None or matrix is None:
        return Markup()
    names = _names(history, len(matrix))
    hits = sum(matrix[i][i] for i in range(len(matrix)))
    total = sum(map(sum, matrix))
    when = "with the final weights" if told.split == "test" else f"after update {told.update}"
    where = f"On the {told.split} set, {when}: {hits:g} of {total:g} right."
    shown = _matrix_table(matrix, names) if len(matrix) <= DRAWN else _pairs_table(matrix, names)
    return section("Confusion", element("p", where, " ", _worst(matrix, names), class_="aside"), shown)


def _evaluation(history: History) -> Evaluated | None:
    best = [history.best] if history.best else []
    newest_first = history.evaluations[::-1]
    candidates = [each for each in newest_first if each.split == "test"] + best + newest_first
    return next((each for each in candidates if "confusion" in each.tables), None)


def _matrix(table: Any) -> list[list[float]] | None:
    """Take a table for a matrix if it is square and made of numbers."""
    if not isinstance(table, list):
        return None
    rows = cast("list[Any]", table)
    if not rows or any(not isinstance(row, list) or len(cast("list[Any]", row)) != len(rows) for row in rows):
        return None
    return [[float(count) for count in row] for row in rows]


def _names(history: History, classes: int) -> list[str]:
    names = history.facts.get("class_names")
    if isinstance(names, list | tuple) and len(cast("Sequence[object]", names)) == classes:
        return [str(name) for name in cast("Sequence[object]", names)]
    return [str(k) for k in range(classes)]


def _matrix_table(matrix: Sequence[Sequence[float]], names: Sequence[str]) -> Markup:
    turned = "class turned" if max(map(len, names)) > 3 else "class"
    titles = (element("th", element("span", name), scope="col", class_=turned) for name in names)
    head = element("tr", element("th", "true \\ predicted", scope="col"), *titles, element("th", "recall", scope="col"))
    rows: list[Markup] = []
    for i, counts in enumerate(matrix):
        row = sum(counts)
        cells = (_cell(count, count / row if row else 0.0, hit=i == j) for j, count in enumerate(counts))
        recall = element("td", f"{100 * counts[i] / row:.1f} %" if row else "none", class_="recall")
        rows.append(element("tr", element("th", names[i], scope="row"), *cells, recall))
    inner = element("table", element("thead", head), element("tbody", *rows), class_="confusion")
    return element("div", inner, class_="scroll", tabindex="0")


def _cell(count: float, share: float, *, hit: bool) -> Markup:
    if count == 0:
        return element("td", "·", class_="zero")
    # A miss of a few per cent must still show, so its colour grows with the root of its share.
    strength = share if hit else share**0.5
    return element("td", f"{count:g}", class_="hit" if hit else "miss", style=f"--share:{100 * strength:.0f}%")


def _misses(matrix: Sequence[Sequence[float]]) -> Iterator[tuple[float, int, int]]:
    for i, row in enumerate(matrix):
        for j, count in enumerate(row):
            if i != j and count > 0:
                yield count, i, j


def _worst(matrix: Sequence[Sequence[float]], names: Sequence[str]) -> str:
    count, i, j = max(_misses(matrix), key=lambda miss: miss[0], default=(0.0, 0, 0))
    if not count:
        return "None was mistaken."
    return f"Most often mistaken: {names[i]} for {names[j]}, {format_count(int(count), 'time')}."


def _pairs_table(matrix: Sequence[Sequence[float]], names: Sequence[str]) -> Markup:
    worst = sorted(_misses(matrix), key=lambda miss: -miss[0])[:PAIRS]
    rows = [(names[i], names[j], f"{count:g}", f"{100 * count / sum(matrix[i]):.1f} %") for count, i, j in worst]
    told = f"{format_count(len(matrix), 'class')} are too many to draw; these pairs are mistaken most."
    head = ["true", "predicted", "times", "of its class"]
    return element("div", element("p", told, class_="aside"), table(head, rows, class_="numbers left"))
