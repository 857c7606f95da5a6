"""Render the confusion matrix of a run as a coloured table, or the most frequent errors if the matrix is large."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from trueloop.core.formatting import format_count
from trueloop.core.html import Markup, element, section, table
from trueloop.core.protocols import Evaluated
from trueloop.runs.history import History

MAX_CLASSES = 30  # a matrix of more classes is unreadable as a table
MAX_PAIRS = 30


def confusion_section(history: History) -> Markup:
    """Render the confusion matrix of the test set, else of the best evaluation, else of the newest evaluation."""
    evaluation = _find_evaluation(history)
    matrix = _parse_matrix(evaluation.tables.get("confusion")) if evaluation else None
    if evaluation is None or matrix is None:
        return Markup()
    names = _class_names(history, len(matrix))
    hits = sum(matrix[i][i] for i in range(len(matrix)))
    total = sum(map(sum, matrix))
    when = "with the final weights" if evaluation.split == "test" else f"after update {evaluation.update}"
    score = f"On the {evaluation.split} set, {when}: {hits:g} of {total:g} correct."
    content = _matrix_table(matrix, names) if len(matrix) <= MAX_CLASSES else _pairs_table(matrix, names)
    return section("Confusion", element("p", score, " ", _worst_pair_sentence(matrix, names), class_="aside"), content)


def _find_evaluation(history: History) -> Evaluated | None:
    best = [history.best] if history.best else []
    newest_first = history.evaluations[::-1]
    candidates = [evaluation for evaluation in newest_first if evaluation.split == "test"] + best + newest_first
    return next((evaluation for evaluation in candidates if "confusion" in evaluation.tables), None)


def _parse_matrix(table: Any) -> list[list[float]] | None:
    """Return a table as a matrix; None if it is not square."""
    if not isinstance(table, list):
        return None
    rows = cast("list[Any]", table)
    if not rows or any(not isinstance(row, list) or len(cast("list[Any]", row)) != len(rows) for row in rows):
        return None
    return [[float(count) for count in row] for row in rows]


def _class_names(history: History, classes: int) -> list[str]:
    names = history.facts.get("class_names")
    if isinstance(names, list | tuple) and len(cast("Sequence[object]", names)) == classes:
        return [str(name) for name in cast("Sequence[object]", names)]
    return [str(k) for k in range(classes)]


def _matrix_table(matrix: Sequence[Sequence[float]], names: Sequence[str]) -> Markup:
    style = "class turned" if max(map(len, names)) > 3 else "class"
    titles = (element("th", element("span", name), scope="col", class_=style) for name in names)
    head = element("tr", element("th", "true \\ predicted", scope="col"), *titles, element("th", "recall", scope="col"))
    rows: list[Markup] = []
    for i, counts in enumerate(matrix):
        total = sum(counts)
        cells = (_cell(count, count / total if total else 0.0, hit=i == j) for j, count in enumerate(counts))
        recall = element("td", f"{100 * counts[i] / total:.1f} %" if total else "none", class_="recall")
        rows.append(element("tr", element("th", names[i], scope="row"), *cells, recall))
    matrix_table = element("table", element("thead", head), element("tbody", *rows), class_="confusion")
    return element("div", matrix_table, class_="scroll", tabindex="0")


def _cell(count: float, share: float, *, hit: bool) -> Markup:
    if count == 0:
        return element("td", "·", class_="zero")
    # The intensity of a wrong cell grows with the root of its share, so that a few per cent are still visible.
    intensity = share if hit else share**0.5
    return element("td", f"{count:g}", class_="hit" if hit else "miss", style=f"--share:{100 * intensity:.0f}%")


def _misses(matrix: Sequence[Sequence[float]]) -> Iterator[tuple[float, int, int]]:
    for i, row in enumerate(matrix):
        for j, count in enumerate(row):
            if i != j and count > 0:
                yield count, i, j


def _worst_pair_sentence(matrix: Sequence[Sequence[float]], names: Sequence[str]) -> str:
    count, i, j = max(_misses(matrix), key=lambda miss: miss[0], default=(0.0, 0, 0))
    if not count:
        return "No errors."
    return f"Most frequent error: {names[i]} predicted as {names[j]}, {format_count(int(count), 'time')}."


def _pairs_table(matrix: Sequence[Sequence[float]], names: Sequence[str]) -> Markup:
    worst = sorted(_misses(matrix), key=lambda miss: -miss[0])[:MAX_PAIRS]
    rows = [(names[i], names[j], f"{count:g}", f"{100 * count / sum(matrix[i]):.1f} %") for count, i, j in worst]
    caption = f"{format_count(len(matrix), 'class')} are too many to draw; these are the most frequent errors."
    head = ["true", "predicted", "times", "of its class"]
    return element("div", element("p", caption, class_="aside"), table(head, rows, class_="numbers left"))
