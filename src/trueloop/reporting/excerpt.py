"""Excerpts of the source code around findings, and fixes as diffs."""

import difflib
import linecache
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from trueloop.core.findings import ExplainedError, Finding, SourceLocation, SuggestedChange
from trueloop.core.source_text import SourceText, apply_fixes

CONTEXT_LINES: Final = 2  # number of lines to show above and below the primary line
MAX_DIFF_LINES: Final = 12  # longer diffs are not shown
RELATED_CONTEXT_LINES: Final = 1  # number of lines to show above and below a related line


class LineNote(NamedTuple):
    """A message about a line."""

    text: str
    is_primary: bool


class Line(NamedTuple):
    """One line of source code."""

    number: int
    text: str
    """Text without the common indentation of the excerpt; "" if the source cannot be read."""
    notes: Sequence[LineNote] = ()

    @property
    def code(self) -> tuple[int, int]:
        """Start and end column of the code, without its indentation and trailing comment."""
        body = self.text.split("  #")[0].rstrip() or self.text
        return len(self.text) - len(self.text.lstrip()), len(body)


class Excerpt(NamedTuple):
    """Some lines of one file; None marks omitted lines."""

    location: SourceLocation
    """Location of the primary line if it is in this file, else of the first related line in this file."""
    lines: Sequence[Line | None]


class DiffLine(NamedTuple):
    """One line of a diff."""

    sign: str
    """ "+", "-" or " "."""
    text: str


def excerpts(finding: Finding | ExplainedError) -> list[Excerpt]:
    """Return one excerpt per file, the file of the primary line first; empty if no user line is known."""
    files: dict[str, dict[int, list[LineNote]]] = {}
    first_locations: dict[str, SourceLocation] = {}
    notes = [(finding.location, LineNote("", is_primary=True))] if finding.location else []
    notes += [(location, LineNote(text, is_primary=False)) for location, text in finding.related]
    for location, note in notes:
        files.setdefault(location.path, {}).setdefault(location.line, []).append(note)
        first_locations.setdefault(location.path, location)
    return [Excerpt(first_locations[path], _lines(path, notes_by_line)) for path, notes_by_line in files.items()]


def diff_lines(change: SuggestedChange) -> list[DiffLine]:
    """Return a suggested change as lines of a diff, without the indentation that all lines share."""
    line = _read_line(change.location.path, change.location.line)
    indent = line[: len(line) - len(line.lstrip())]
    added = [DiffLine("+", (indent + text).rstrip()) for text in change.text.expandtabs(4).splitlines()]
    if not line:
        return _dedent(added)
    if change.position == "instead":
        return _dedent([DiffLine("-", line), *added])
    return _dedent([*added, DiffLine(" ", line)] if change.position == "before" else [DiffLine(" ", line), *added])


def fix_diff(finding: Finding) -> list[DiffLine]:
    """Return a fix as lines of a diff; empty if the file cannot be read, or too many lines change.

    The result for a notebook is empty: the edits of its fixes refer to the joined code cells.
    """
    if finding.autofix is None or finding.location is None or finding.cell is not None:
        return []
    try:
        before = SourceText(Path(finding.location.path).read_bytes().decode())
    except (OSError, UnicodeDecodeError):
        return []
    after, applied = apply_fixes(before, [finding.autofix])
    if not applied:
        return []
    old, new = (text.source.expandtabs(4).removeprefix("\ufeff").splitlines() for text in (before, after))
    lines = list(difflib.unified_diff(old, new, n=0))[2:]
    changes = [DiffLine(line[0], line[1:].rstrip()) for line in lines if not line.startswith("@")]
    return _dedent(changes) if len(changes) <= MAX_DIFF_LINES else []


def _lines(path: str, notes: Mapping[int, Sequence[LineNote]]) -> list[Line | None]:
    numbers: set[int] = set()
    for number, line_notes in notes.items():
        context = CONTEXT_LINES if any(note.is_primary for note in line_notes) else RELATED_CONTEXT_LINES
        numbers |= {number, *range(max(1, number - context), number + context + 1)}
    # a single omitted line is shown, since the mark of the gap would take a line as well
    numbers |= {number + 1 for number in numbers if number + 2 in numbers}
    lines = [Line(number, _read_line(path, number), notes.get(number, ())) for number in sorted(numbers)]
    indent = _common_indent([line.text for line in lines])
    return list(_mark_gaps(_trim([line._replace(text=line.text[indent:]) for line in lines])))


def _trim(lines: Sequence[Line]) -> Iterator[Line]:
    """Drop empty lines at both ends of each run of consecutive lines, such as lines after the end of the file."""
    nonempty = {line.number for line in lines if line.text.strip() or line.notes}
    present = {line.number for line in lines}
    for line in lines:
        above = any(n in nonempty for n in _consecutive(line.number, -1, present))
        below = any(n in nonempty for n in _consecutive(line.number, 1, present))
        if above and below:
            yield line


def _consecutive(start: int, step: int, present: set[int]) -> Iterator[int]:
    """Yield ``start``, ``start + step``, ... until a number is not in ``present``."""
    while start in present:
        yield start
        start += step


def _mark_gaps(lines: Iterable[Line]) -> Iterator[Line | None]:
    previous: Line | None = None
    for line in lines:
        if previous is not None and line.number > previous.number + 1:
            yield None
        yield line
        previous = line


def _read_line(path: str, number: int) -> str:
    return linecache.getline(path, number).rstrip().expandtabs(4)


def _dedent(changes: Sequence[DiffLine]) -> list[DiffLine]:
    indent = _common_indent([change.text for change in changes])
    return [DiffLine(sign, text[indent:]) for sign, text in changes]


def _common_indent(texts: Iterable[str]) -> int:
    return min((len(text) - len(text.lstrip()) for text in texts if text.strip()), default=0)
