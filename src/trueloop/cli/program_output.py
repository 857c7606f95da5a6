"""Reads what a program printed: from standard input, passed on or not, from a log, or from a notebook's file."""

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TextIO

from trueloop.core.errors import InvalidConfig
from trueloop.core.json_text import parse_json

MAX_LINES: Final = 50_000  # lines that are kept of a long run; its error stands at the end


def read_stream(lines: Iterable[str], echo: TextIO | None = None) -> str:
    """Return the last lines of what is printed, once it ends.

    Args:
        lines: as they come.
        echo: each is forwarded there immediately; None = not at all.
    """
    kept: deque[str] = deque(maxlen=MAX_LINES)
    for line in lines:
        kept.append(line)
        if echo is not None:
            echo.write(line)
            echo.flush()
    return "".join(kept)


def read_file(path: Path) -> str:
    """Return the last lines of a log, or the errors in a notebook's outputs.

    Raises:
        InvalidConfig: it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = read_stream(file)
    except OSError as error:
        raise InvalidConfig(f"{str(path)!r} cannot be read: {error.strerror}.", fix="Name another file.") from error
    return "\n".join(_outputs(text)) if path.suffix == ".ipynb" else text


def _outputs(text: str) -> Iterable[str]:
    try:
        notebook: Any = parse_json(text)
        outputs = [output for cell in notebook.get("cells", []) for output in cell.get("outputs", [])]
        errors = [output.get("traceback", []) for output in outputs if output.get("output_type") == "error"]
        printed = ["".join(output.get("text", [])) for output in outputs if output.get("output_type") == "stream"]
        return [*printed, *("\n".join([*lines, ""]) for lines in errors)]
    except (ValueError, AttributeError, TypeError):  # no notebook, whatever it is called
        return [text]
