"""Reads errors out of what a program printed: tracebacks of Python, notebooks, pytest and rich, of one rank or many."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from trueloop.core.findings import SourceLocation

ErrorRole = Literal["raised", "worker", "cause", "context"]

_CONTROL: Final = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b[@-_]")
_TIME: Final = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z|[+-]\d\d:?\d\d)? (?:stderr|stdout)?(?: F )?")
_RANK: Final = re.compile(r"^\[(?:rank|default)(\d+)\]:\s?")
_TASK: Final = re.compile(r"^ *(\d+): ")  # srun --label
_SERVICE: Final = re.compile(r"^[\w.-]+ +\| ")  # docker compose
_GROUP_PREFIX: Final = re.compile(r"^\s*[|+](?:[-+]+ ?\d* ?-*| )?")  # of an exception group
_TRACEBACK_START: Final = re.compile(
    r"^\s*(?:[A-Za-z_][\w.]* {2,}|Exception Group |(?P<worker>Original )|╭─+ )?Traceback \(most recent call last\)"
)
_CAUSE: Final = "The above exception was the direct cause of the following exception"
_CONTEXT: Final = "During handling of the above exception, another exception occurred"
_FRAME_PATTERNS: Final = (
    re.compile(r'^\s*(?:>|│)?\s*File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?'),
    re.compile(r"^(?P<path>Cell In ?\[\d+\]), line (?P<line>\d+)"),
    re.compile(r"^(?P<path>(?:Input )?In \[\d+\]), in <cell line: (?P<line>\d+)>"),
    re.compile(r"^File (?P<path>\S.*?):(?P<line>\d+)(?:, in (?P<name>[\w.<>]+))?"),
    re.compile(r"^\s*│\s+(?P<path>[/~.\w][^│]*?\.py):(?P<line>\d+) in (?P<name>[\w.<>]+)"),
)
_BOXED: Final = re.compile(r"^\s*│ (?P<inner>[^│]*) │\s*$")
_IN_BOX: Final = re.compile(r"(?P<path>[/~.\w].*\.py):(?P<line>\d+) ?in ?(?P<name>[\w.<>]+)")
_LAST_LINE: Final = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*)|:)?$")
_SINGLE_LINE: Final = re.compile(  # without a traceback above it; pytest begins it with E
    r"^(?:E +)?(?P<type>(?:\w+\.)*[A-Z]\w*(?:Error|Exception)|(?:trueloop\.[\w.]+)[A-Z]\w+): (?P<message>.*)$"
)
_PYTEST_LOCATION: Final = re.compile(r"^(?P<path>\S+\.py):(?P<line>\d+): *(?P<type>\w*)$")  # pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorText:
    """One error, as it was printed."""

    type: str
    """Without its module: "RuntimeError"; "" = only a message was given."""
    module: str = ""
    """Of the type: "torch"; "" for Python's own."""
    message: str
    frames: tuple[SourceLocation, ...] = ()
    """Outermost first."""
    role: ErrorRole = "raised"
    """It ended the program, or a loader's worker; or the next one came from it, or came while it was being handled."""
    ranks: tuple[int, ...] = ()
    """Processes that printed it, where the lines say so."""


@dataclass(slots=True, kw_only=True)
class _Block:
    """An error that is being read."""

    indent: int
    worker: bool
    frames: list[SourceLocation] = field(default_factory=list[SourceLocation])
    type: str = ""
    message: list[str] = field(default_factory=list[str])
    role: ErrorRole = "raised"


def parse_errors(text: str) -> list[ErrorText]:
    """Return the errors a text holds, in the order they were printed; equal ones of several processes once.

    Args:
        text: all that a program printed, or one traceback, or the last line of one.
    """
    found: dict[tuple[str, str, ErrorRole], ErrorText] = {}
    for rank, lines in _split_by_rank(strip_terminal_codes(text).splitlines()).items():
        for block in _parse_blocks(lines):
            module, _, name = block.type.rpartition(".")
            message = "\n".join(block.message).strip()
            key = (name, message, block.role)
            before = found.get(key)
            ranks = (*(before.ranks if before else ()), *(() if rank is None else (rank,)))
            frames = tuple(block.frames) or (before.frames if before else ())
            found[key] = ErrorText(
                type=name,
                module=module,
                message=message,
                frames=frames,
                role=block.role,
                ranks=tuple(dict.fromkeys(ranks)),
            )
    return list(found.values())


def strip_terminal_codes(text: str) -> str:
    """Take away what only a terminal or a log collector wants: colours, lines that were overwritten, times."""
    bare = _CONTROL.sub("", text).replace("\r\n", "\n")
    return "\n".join(_TIME.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in bare.split("\n"))


def _split_by_rank(lines: Sequence[str]) -> dict[int | None, list[str]]:
    """Take the lines of each process together, which come mixed."""
    tasks = any(_TASK.match(line) and _TRACEBACK_START.match(_TASK.sub("", line)) for line in lines)
    services = any(_SERVICE.match(line) and _TRACEBACK_START.match(_SERVICE.sub("", line)) for line in lines)
    sorted_: dict[int | None, list[str]] = {}
    for line in lines:
        bare = _SERVICE.sub("", line) if services else line
        mark = _RANK.match(bare) or (_TASK.match(bare) if tasks else None)
        rank = int(mark[1]) if mark else None
        sorted_.setdefault(rank, []).append(bare[mark.end() :] if mark else bare)
    return sorted_


def _parse_blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Cut lines into errors. The link between two stands between them, and belongs to the first."""
    waiting: list[_Block] = []
    outer: list[SourceLocation] = []
    current: _Block | None = None
    for line in _join_wrapped_lines(lines):
        bare = _GROUP_PREFIX.sub("", line) if line.lstrip()[:1] in ("|", "+") else line
        begun = _TRACEBACK_START.match(bare)
        if begun:
            current = _Block(indent=_indent(bare), worker=bool(begun["worker"]))
            waiting.append(current)
        elif _CAUSE in bare or _CONTEXT in bare:
            if waiting:
                waiting[-1].role = "cause" if _CAUSE in bare else "context"
            current = None
        elif current is not None:
            current = _parse_line(current, bare)
        elif ended := _SINGLE_LINE.match(bare):
            current = _Block(indent=0, worker=False, frames=outer, type=ended["type"], message=[ended["message"]])
            outer = []
            waiting.append(current)
        elif place := _PYTEST_LOCATION.match(bare):
            of = waiting[-1].frames if place["type"] and waiting else outer
            of.append(SourceLocation(place["path"], int(place["line"])))
    for block in waiting:
        if block.type:
            block.role = "worker" if block.worker else block.role
            yield block


def _join_wrapped_lines(lines: Sequence[str]) -> Iterator[str]:
    """Put together what rich breaks into lines where its box is too narrow: the place of a frame."""
    part: list[str] = []
    for line in (*lines, ""):
        if (boxed := _BOXED.match(line)) and boxed["inner"].strip():
            part.append(line)
            continue
        # It ends a line where a space was, but for words longer than a line, which fill lines of their own.
        inner = [_BOXED.sub(r"\g<inner>", each) for each in part]
        text = "".join(f"{each.rstrip()} " if " " in each else each for each in inner).strip()
        place = _IN_BOX.fullmatch(text)
        yield from [f"│ {place['path']}:{place['line']} in {place['name']}"] if place else part
        part = []
        yield line


def _parse_line(block: _Block, line: str) -> _Block | None:
    """Take one more line into an error; None where it is over."""
    if block.type:
        if not line.strip():
            return None
        block.message.append(re.sub(r"^E( +|$)", "", line).rstrip())
        return block
    for form in _FRAME_PATTERNS:
        if frame := form.match(line):
            name = frame.groupdict().get("name") or ""
            block.frames.append(SourceLocation(frame["path"], int(frame["line"]), name.strip()))
            return block
    ended = _LAST_LINE.match(line[block.indent :] if not line[: block.indent].strip() else line)
    if ended:
        block.type, block.message = ended["type"], [ended["message"] or ""]
    return block


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
