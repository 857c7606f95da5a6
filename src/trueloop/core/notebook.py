"""Converts the code cells of a notebook to one text and back; all other bytes of the file stay unchanged."""

import ast
import json
import linecache
import re
import warnings
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

_MAGIC: Final = re.compile(r"^(?P<indent>\s*)(?P<line>(?:%|!|\?|[\w.]+\?{1,2}\s*$|[\w, .\[\]'\"]+?\s*=\s*[%!]).*)$")


_PYTHON_CELL: Final = re.compile(r"%%(?:time|timeit|capture|prun|memit|watch)\b")
"""Cell magics whose cell is Python. The cells of other magics are another language, or a file to write."""


class NotANotebook(ValueError):
    """A text is not a notebook."""


class Cell(NamedTuple):
    """A code cell."""

    number: int
    """Number of the cell among the cells of all types, from 1."""
    source: str
    span: tuple[int, int]
    """Start and end of the source's JSON value, as positions in the text of the file."""
    is_list: bool
    """True if the JSON value is a list of lines, False if it is one string."""
    lines: tuple[int, ...]
    """For each line of the cell, its line number in the file, from 1; empty if `is_list` is False."""

    def file_in(self, path: str) -> str:
        """Return the name under which the cell of a notebook is compiled and reported."""
        return f"{path}:cell {self.number}"

    def cache_lines(self, path: str, text: str) -> None:
        """Add a text of the cell to Python's `linecache`, from which reports and tracebacks read what they show."""
        lines = [f"{line}\n" for line in text.split("\n")]
        linecache.cache[self.file_in(path)] = (len(text), None, lines, path)


class Notebook:
    """The code of a notebook.

    Args:
        raw: text of the file.

    Raises:
        NotANotebook: the text is not a notebook.
    """

    def __init__(self, raw: str) -> None:
        self._raw = raw
        try:
            self.cells = list(_cells(raw))
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise NotANotebook(f"not a notebook: {error}") from error
        sources = "\n".join(cell.source for cell in self.cells)
        self._marker = "trueloop"
        while any(f"# {self._marker}: {word} " in sources for word in ("cell", "hidden")):
            self._marker += "'"  # a cell contains such a line
        self.invalid_cells: list[tuple[int, str]] = []
        """Numbers of the cells that are not valid Python, each with the reason; these cells are skipped."""
        self._first_lines: list[int] = []  # line number in `text` of the first line of each cell, from 1
        self._hidden = re.compile(rf"^(?P<indent>\s*)pass  # {self._marker}: hidden (?P<line>.*)$", re.MULTILINE)
        self.codes = [self._as_python(cell) for cell in self.cells]
        """Code of each cell as Python, with as many lines as the cell; a line with a magic is replaced by ``pass``."""
        marker_line = 1
        for code in self.codes:
            self._first_lines.append(marker_line + 1)
            marker_line += 1 + code.count("\n")
        markers = (f"# {self._marker}: cell {cell.number}\n" for cell in self.cells)
        self.text = "".join(marker + code for marker, code in zip(markers, self.codes, strict=True))
        """Code of all cells, each after a marker comment."""

    @property
    def skipped_lines(self) -> list[str]:
        """The lines that only Jupyter runs: magics, shell commands, and the cells of other languages."""
        lines = (each["line"].rstrip() for code in self.codes for each in self._hidden.finditer(code))
        return [line for line in lines if line]

    def locate(self, line: int) -> tuple[Cell, int]:
        """Return the cell that contains a line of `text`, and the line number within that cell, from 1."""
        index = max((i for i, first_line in enumerate(self._first_lines) if first_line <= line), default=0)
        return self.cells[index], max(1, line - self._first_lines[index] + 1)

    def render(self, text: str) -> str:
        """Return the text of the file with the code of a changed `text`; unchanged cells stay identical."""
        marker = re.compile(rf"^# {self._marker}: cell \d+\n", re.MULTILINE)
        raw = self._raw
        cells = zip(self.cells, marker.split(self.text)[1:], marker.split(text)[1:], strict=True)
        for cell, before, after in reversed(list(cells)):
            if before != after:
                source = self._hidden.sub(r"\g<indent>\g<line>", after)
                if not cell.source.endswith("\n"):
                    source = source.removesuffix("\n")
                raw = raw[: cell.span[0]] + _encode_source(source, cell, self._raw) + raw[cell.span[1] :]
        return raw

    def _as_python(self, cell: Cell) -> str:
        """Return the code of a cell as valid Python, with the same number of lines and a final line end."""
        source = cell.source if cell.source.endswith("\n") else f"{cell.source}\n"
        if _syntax_problem(source) is None:
            return source
        lines = source[:-1].split("\n")
        prefix = f"pass  # {self._marker}: hidden "
        all_hidden = "".join(f"{prefix}{line}\n" for line in lines)
        if cell.source.lstrip().startswith("%%") and not _PYTHON_CELL.match(cell.source.lstrip()):
            return all_hidden
        magics_hidden = "".join(_MAGIC.sub(rf"\g<indent>{prefix}\g<line>", line) + "\n" for line in lines)
        problem = _syntax_problem(magics_hidden)
        if problem is None:
            return magics_hidden
        self.invalid_cells.append((cell.number, f"cell {cell.number}{problem}"))
        return all_hidden


def _syntax_problem(source: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except SyntaxError as error:
        return f" line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f": {error}"
    return None


def _encode_source(source: str, cell: Cell, raw: str) -> str:
    if not cell.is_list:
        return json.dumps(source, ensure_ascii=False)
    start = cell.span[0]
    inner = re.match(r"\[(\s*)", raw[start:])
    whitespace = inner[1] if inner else ""
    closing = re.search(r"(\s*)\]$", raw[start : cell.span[1]])
    lines = [json.dumps(line, ensure_ascii=False) for line in source.splitlines(keepends=True)]
    separator = f",{whitespace}" if whitespace else ", "
    return f"[{whitespace}{separator.join(lines)}{closing[1] if closing else ''}]"


def _cells(raw: str) -> Iterator[Cell]:
    """Yield the code cells with the positions of their sources in the file."""
    top_level = _member_spans(raw, _skip_space(raw, 0))
    if "cells" not in top_level:
        raise ValueError("it has no cells")
    start, _ = top_level["cells"]
    for number, (begin, _) in enumerate(_item_spans(raw, start), 1):
        members = _member_spans(raw, begin)
        if "source" not in members or json.loads(raw[slice(*members["cell_type"])]) != "code":
            continue
        span = members["source"]
        value: Any = json.loads(raw[slice(*span)])
        if isinstance(value, list):
            lines = [raw.count("\n", 0, item) + 1 for item, _ in _item_spans(raw, span[0])]
            yield Cell(number, "".join(value), span, is_list=True, lines=tuple(lines))
        else:
            yield Cell(number, str(value), span, is_list=False, lines=())


_DECODER: Final = json.JSONDecoder()


def _skip_space(raw: str, at: int) -> int:
    while at < len(raw) and raw[at] in " \t\r\n":
        at += 1
    return at


def _member_spans(raw: str, at: int) -> dict[str, tuple[int, int]]:
    """Return the span of the value of each key of a JSON object that starts at a position."""
    if raw[at : at + 1] != "{":
        raise ValueError("an object was expected")
    spans: dict[str, tuple[int, int]] = {}
    at = _skip_space(raw, at + 1)
    while raw[at] != "}":
        key, at = _DECODER.raw_decode(raw, at)
        at = _skip_space(raw, _skip_space(raw, at) + 1)
        _, end = _DECODER.raw_decode(raw, at)
        spans[key] = (at, end)
        at = _skip_space(raw, end)
        at = _skip_space(raw, at + 1) if raw[at] == "," else at
    return spans


def _item_spans(raw: str, at: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of the items of a JSON list that starts at a position."""
    if raw[at : at + 1] != "[":
        raise ValueError("a list was expected")
    at = _skip_space(raw, at + 1)
    while raw[at] != "]":
        _, end = _DECODER.raw_decode(raw, at)
        yield at, end
        at = _skip_space(raw, end)
        at = _skip_space(raw, at + 1) if raw[at] == "," else at
