"""The number of a run: the same over all its processes, wherever its folder is moved to."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Final

from trueloop.core.json_text import parse_json

_MOST: Final = 4_000_000  # bytes of the first line, which holds a recipe's source and every package
_NUMBER: Final = re.compile(r"[0-9a-f]{32}")


def run_id(journal: Path) -> str | None:
    """Return 32 hexadecimal digits, from the first line of a journal; None where no run has started in it."""
    try:
        with journal.open("rb") as file:
            line = file.readline(_MOST)
        record: Any = parse_json(line)
        started = record["event"] == "run_started"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run_id_of(line) if started and line.endswith(b"\n") else None


def run_id_of(first_line: bytes) -> str:
    """Return the number that the first line of a journal gives; of one from before runs had numbers, its hash.

    Whatever else a journal says there is not taken for a number.
    """
    try:
        given = str(parse_json(first_line)["facts"]["run_id"])
    except (ValueError, KeyError, TypeError):
        given = ""
    return given if _NUMBER.fullmatch(given) else hashlib.sha256(first_line).hexdigest()[:32]
