"""Format plain tables: fast for 10,000 rows, and at most as wide as the terminal; output to a file is not cut."""

import os
import shutil
import sys
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager

from rich.cells import cell_len, set_cell_size
from rich.console import Console

from trueloop.core.formatting import replace_unprintable

GAP = "  "
_MIN_WIDTH = 12  # minimum width of a column whose texts are cut


def terminal_width() -> int | None:
    """Return the width of the terminal in columns; None if the output goes to a file or another program."""
    if "COLUMNS" in os.environ or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def print_line(text: str) -> None:
    """Print a text without control characters; characters that the output's encoding lacks are printed as "?"."""
    printable = "\n".join(map(replace_unprintable, text.split("\n")))
    encoding = sys.stdout.encoding or "utf-8"
    print(printable.encode(encoding, "replace").decode(encoding))


@contextmanager
def strip_line_ends(console: Console) -> Generator[None]:
    """Remove the blanks with which rich fills lines from what is printed in a ``with`` block."""
    with console.capture() as printed:
        yield
    for line in printed.get().splitlines():
        console.file.write(line.rstrip() + "\n")


def can_encode(text: str) -> bool:
    """Return True if the output's encoding has all characters of a text."""
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
    never_cut: Collection[int] = (),
    width: int | None = None,
) -> Iterator[str]:
    """Yield the lines of a table, the titles first, without control characters.

    Args:
        head: titles of the columns; if all are empty, there is no title line.
        rows: rows of texts, with one text per column.
        right: indices of the columns that are aligned to the right.
        never_cut: indices of the columns that are never shortened, such as names that the user copies.
        width: width of the terminal; the widest columns are cut to fit, then the lines. None = nothing is cut.
    """
    table = [[replace_unprintable(text) for text in row] for row in (head, *rows)]
    widths = [max(map(_length, column)) for column in zip(*table, strict=True)]
    if width is not None:
        _shrink(widths, width, never_cut)
    for row in table if any(head) else table[1:]:
        line = GAP.join(_fit(text, widths[k], right=k in right) for k, text in enumerate(row)).rstrip()
        yield line if width is None or _length(line) <= width else _truncate_cell(line, width)


def _shrink(widths: list[int], width: int, never_cut: Collection[int]) -> None:
    """Reduce the widths of the widest columns until the table fits."""
    cut = [k for k in range(len(widths)) if k not in never_cut]
    while cut and (excess := sum(widths) + len(GAP) * (len(widths) - 1) - width) > 0:
        k = max(cut, key=widths.__getitem__)
        next_widest = max((widths[other] for other in cut if widths[other] < widths[k]), default=_MIN_WIDTH)
        smaller = max(_MIN_WIDTH, widths[k] - excess, min(next_widest, widths[k] - 1))
        if smaller >= widths[k]:
            return
        widths[k] = smaller


def _fit(text: str, size: int, *, right: bool) -> str:
    length = _length(text)
    if length > size:
        return _truncate_cell(text, size)
    return " " * (size - length) + text if right else text + " " * (size - length)


def _truncate_cell(text: str, size: int) -> str:
    return set_cell_size(text, size - 1) + "…" if size > 0 else ""


def _length(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)
