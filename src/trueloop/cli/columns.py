"""A plain table: fast for 10,000 rows, no wider than the terminal, uncut where the output is none."""

import os
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from trueloop.core.formatting import replace_unprintable

GAP = "  "
_LEAST = 12  # columns that are left of a text that is cut


def terminal_width() -> int | None:
    """Return the columns there are to write to; None where the output goes to a file or another program."""
    if "COLUMNS" in os.environ or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def print_line(text: str) -> None:
    """Print a text, nothing of which can steer the terminal; what the output's encoding does not know comes as "?"."""
    shown = "\n".join(map(replace_unprintable, text.split("\n")))
    encoding = sys.stdout.encoding or "utf-8"
    print(shown.encode(encoding, "replace").decode(encoding))


def can_encode(text: str) -> bool:
    """Say whether the output's encoding knows all of a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def align_columns(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    whole: Collection[int] = (),
    most: int | None = None,
) -> Iterator[str]:
    """Write a table line by line, the titles first; nothing in it can steer the terminal.

    Args:
        head: titles; all empty for a table without.
        rows: texts, as many as there are titles.
        right: which are aligned to the right.
        whole: which are not cut as long as there is another one to cut: names that are to be copied.
        most: columns of the terminal; the widest texts are cut to fit, then the lines.
    """
    table = [[replace_unprintable(text) for text in row] for row in (head, *rows)]
    widths = [max(map(_length, column)) for column in zip(*table, strict=True)]
    if most is not None:
        _shrink(widths, most, whole)
    for row in table if any(head) else table[1:]:
        line = GAP.join(_fit(text, widths[k], right=k in right) for k, text in enumerate(row)).rstrip()
        yield line if most is None or _length(line) <= most else _cut(line, most)


def _shrink(widths: list[int], most: int, whole: Collection[int]) -> None:
    """Take from the widest columns what is too much."""
    cut = [k for k in range(len(widths)) if k not in whole]
    while cut and (excess := sum(widths) + len(GAP) * (len(widths) - 1) - most) > 0:
        k = max(cut, key=widths.__getitem__)
        second = max((widths[other] for other in cut if widths[other] < widths[k]), default=_LEAST)
        smaller = max(_LEAST, widths[k] - excess, min(second, widths[k] - 1))
        if smaller >= widths[k]:
            return
        widths[k] = smaller


def _fit(text: str, size: int, *, right: bool) -> str:
    length = _length(text)
    if length > size:
        return _cut(text, size)
    return " " * (size - length) + text if right else text + " " * (size - length)


def _cut(text: str, size: int) -> str:
    return set_cell_size(text, size - 1) + "…" if size > 0 else ""


def _length(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)
