"""Read the output of a program from standard input, a log file, or a notebook."""

from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TextIO

from trueloop.core.errors import InvalidConfig
from trueloop.core.json_text import parse_json

MAX_LINES: Final = 50_000  # number of last lines to return; the error of a program is at the end


def read_stream(lines: Iterable[str], echo: TextIO | None = None) -> str:
    """Read a stream to its end, and return its last lines.

    Args:
        lines: the stream.
        echo: stream to which every line is written immediately; None = no echo.
    """
    last_lines: deque[str] = deque(maxlen=MAX_LINES)
    for line in lines:
        last_lines.append(line)
        if echo is not None:
            echo.write(line)
            echo.flush()
    return "".join(last_lines)


def read_file(path: Path) -> str:
    """Return the last lines of a log, or the errors in a notebook's outputs.

    Raises:
        InvalidConfig: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = read_stream(file)
    except OSError as error:
        raise InvalidConfig(f"{str(path)!r} cannot be read: {error.strerror}.", fix="Pass another file.") from error
    return "\n".join(_notebook_outputs(text)) if path.suffix == ".ipynb" else text


def _notebook_outputs(text: str) -> Iterable[str]:
    try:
        notebook: Any = parse_json(text)
        outputs = [output for cell in notebook.get("cells", []) for output in cell.get("outputs", [])]
        errors = [output.get("traceback", []) for output in outputs if output.get("output_type") == "error"]
        printed = ["".join(output.get("text", [])) for output in outputs if output.get("output_type") == "stream"]
        return [*printed, *("\n".join([*lines, ""]) for lines in errors)]
    except (ValueError, AttributeError, TypeError):  # not a notebook, despite its name
        return [text]
