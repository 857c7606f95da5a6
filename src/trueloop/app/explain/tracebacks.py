"""Parse errors from program output: tracebacks of Python, notebooks, pytest and rich, of one or several ranks."""

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
_GROUP_PREFIX: Final = re.compile(r"^\s*[|+](?:[-+]+ ?\d* ?-*| )?")  # exception group
_TRACEBACK_START: Final = re.compile(
    r"^\s*(?:[A-Za-z_][\w.]* {2,}|Exception Group |(?P<worker>Original )|╭─+ )?Traceback \(most recent call last\)"
)
_CAUSE: Final = "The above exception was the direct cause of the following exception"
_CONTEXT: Final = "During handling of the above exception, another exception occurred"
_FRAME_PATTERNS: Final = (
    re.compile(r'^\s*(?:>|│)?\s*File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?'),  # Python
    re.compile(r"^(?P<path>Cell In ?\[\d+\]), line (?P<line>\d+)"),  # notebook
    re.compile(r"^(?P<path>(?:Input )?In \[\d+\]), in <cell line: (?P<line>\d+)>"),  # notebook, before IPython 8.7
    re.compile(r"^File (?P<path>\S.*?):(?P<line>\d+)(?:, in (?P<name>[\w.<>]+))?"),  # notebook, for a file
    re.compile(r"^\s*│\s+(?P<path>[/~.\w][^│]*?\.py):(?P<line>\d+) in (?P<name>[\w.<>]+)"),  # rich
)
_BOXED: Final = re.compile(r"^\s*│ (?P<inner>[^│]*) │\s*$")  # rich draws a box around a traceback
_BOXED_FRAME: Final = re.compile(r"(?P<path>[/~.\w].*\.py):(?P<line>\d+) ?in ?(?P<name>[\w.<>]+)")
_LAST_LINE: Final = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*)|:)?$")
_SINGLE_LINE: Final = re.compile(  # an error without a traceback; pytest marks it with E
    r"^(?:E +)?(?P<type>(?:\w+\.)*[A-Z]\w*(?:Error|Exception)|(?:trueloop\.[\w.]+)[A-Z]\w+): (?P<message>.*)$"
)
_PYTEST_LOCATION: Final = re.compile(r"^(?P<path>\S+\.py):(?P<line>\d+): *(?P<type>\w*)$")  # pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorText:
    """A printed error."""

    type: str
    """Type of the error without its module: "RuntimeError"; "" = only a message."""
    module: str = ""
    """Module of the type: "torch"; "" for builtins."""
    message: str
    frames: tuple[SourceLocation, ...] = ()
    """Frames of the traceback, outermost first."""
    role: ErrorRole = "raised"
    """Role of the error: it ended the program ("raised") or a loader worker ("worker"), caused the next error
    ("cause"), or was being handled when the next error was raised ("context")."""
    ranks: tuple[int, ...] = ()
    """Ranks that printed the error; empty if the lines do not name ranks."""


@dataclass(slots=True, kw_only=True)
class _Block:
    """An error that is being parsed."""

    indent: int
    """Number of spaces before the first line of the traceback."""
    in_worker: bool
    """True for an error that a loader worker or a replica raised."""
    frames: list[SourceLocation] = field(default_factory=list[SourceLocation])
    type: str = ""
    message: list[str] = field(default_factory=list[str])
    role: ErrorRole = "raised"


def parse_errors(text: str) -> list[ErrorText]:
    """Return the errors in a program's output in the order of the text; equal errors of several ranks are merged."""
    errors: dict[tuple[str, str, ErrorRole], ErrorText] = {}
    for rank, lines in _split_by_rank(strip_terminal_codes(text).splitlines()).items():
        for block in _parse_blocks(lines):
            module, _, name = block.type.rpartition(".")
            message = "\n".join(block.message).strip()
            key = (name, message, block.role)
            equal_error = errors.get(key)
            ranks = (*(equal_error.ranks if equal_error else ()), *(() if rank is None else (rank,)))
            frames = tuple(block.frames) or (equal_error.frames if equal_error else ())
            errors[key] = ErrorText(
                type=name,
                module=module,
                message=message,
                frames=frames,
                role=block.role,
                ranks=tuple(dict.fromkeys(ranks)),
            )
    return list(errors.values())


def strip_terminal_codes(text: str) -> str:
    """Remove colours, overwritten lines and the time stamps of log collectors from a text."""
    plain = _CONTROL.sub("", text).replace("\r\n", "\n")
    return "\n".join(_TIME.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in plain.split("\n"))


def _split_by_rank(lines: Sequence[str]) -> dict[int | None, list[str]]:
    """Group the interleaved lines of several ranks by rank; lines that name no rank have the key None."""
    has_tasks = any(_TASK.match(line) and _TRACEBACK_START.match(_TASK.sub("", line)) for line in lines)
    has_services = any(_SERVICE.match(line) and _TRACEBACK_START.match(_SERVICE.sub("", line)) for line in lines)
    by_rank: dict[int | None, list[str]] = {}
    for line in lines:
        bare = _SERVICE.sub("", line) if has_services else line
        prefix = _RANK.match(bare) or (_TASK.match(bare) if has_tasks else None)
        rank = int(prefix[1]) if prefix else None
        by_rank.setdefault(rank, []).append(bare[prefix.end() :] if prefix else bare)
    return by_rank


def _parse_blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Split lines into errors. A line that links two errors determines the role of the first error."""
    blocks: list[_Block] = []
    pytest_frames: list[SourceLocation] = []
    current: _Block | None = None
    for line in _join_wrapped_lines(lines):
        bare = _GROUP_PREFIX.sub("", line) if line.lstrip()[:1] in ("|", "+") else line
        start = _TRACEBACK_START.match(bare)
        if start:
            current = _Block(indent=len(bare) - len(bare.lstrip()), in_worker=bool(start["worker"]))
            blocks.append(current)
        elif _CAUSE in bare or _CONTEXT in bare:
            if blocks:
                blocks[-1].role = "cause" if _CAUSE in bare else "context"
            current = None
        elif current is not None:
            current = _parse_line(current, bare)
        elif last_line := _SINGLE_LINE.match(bare):
            current = _Block(
                indent=0, in_worker=False, frames=pytest_frames, type=last_line["type"], message=[last_line["message"]]
            )
            pytest_frames = []
            blocks.append(current)
        elif location := _PYTEST_LOCATION.match(bare):
            frames = blocks[-1].frames if location["type"] and blocks else pytest_frames
            frames.append(SourceLocation(location["path"], int(location["line"])))
    for block in blocks:
        if block.type:
            block.role = "worker" if block.in_worker else block.role
            yield block


def _join_wrapped_lines(lines: Sequence[str]) -> Iterator[str]:
    """Join the frame locations that rich wraps in a narrow box."""
    box_lines: list[str] = []
    for line in (*lines, ""):
        if (boxed := _BOXED.match(line)) and boxed["inner"].strip():
            box_lines.append(line)
            continue
        # rich wraps lines at spaces, so a line without a space is part of a word that is longer than a line
        contents = [_BOXED.sub(r"\g<inner>", each) for each in box_lines]
        text = "".join(f"{each.rstrip()} " if " " in each else each for each in contents).strip()
        frame = _BOXED_FRAME.fullmatch(text)
        yield from [f"│ {frame['path']}:{frame['line']} in {frame['name']}"] if frame else box_lines
        box_lines = []
        yield line


def _parse_line(block: _Block, line: str) -> _Block | None:
    """Add a line to an error; return None if the error is complete."""
    if block.type:
        if not line.strip():
            return None
        block.message.append(re.sub(r"^E( +|$)", "", line).rstrip())
        return block
    for pattern in _FRAME_PATTERNS:
        if frame := pattern.match(line):
            name = frame.groupdict().get("name") or ""
            block.frames.append(SourceLocation(frame["path"], int(frame["line"]), name.strip()))
            return block
    last_line = _LAST_LINE.match(line[block.indent :] if not line[: block.indent].strip() else line)
    if last_line:
        block.type, block.message = last_line["type"], [last_line["message"] or ""]
    return block
