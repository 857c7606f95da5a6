"""Read the id of a run, which is the same for all its processes and stays the same if the run folder is moved."""

import hashlib
import re
from pathlib import Path
from typing import Any, Final

from trueloop.core.json_text import parse_json

_MAX_FIRST_LINE_BYTES: Final = 4_000_000  # the first line holds a recipe's source and all packages
_RUN_ID: Final = re.compile(r"[0-9a-f]{32}")


def read_run_id(journal: Path) -> str | None:
    """Return the 32 hexadecimal digits in the first line of a journal; None if no run has started in it."""
    try:
        with journal.open("rb") as file:
            line = file.readline(_MAX_FIRST_LINE_BYTES)
        record: Any = parse_json(line)
        started = record["event"] == "run_started"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return parse_run_id(line) if started and line.endswith(b"\n") else None


def parse_run_id(first_line: bytes) -> str:
    """Return the run id in the first line of a journal, or a hash of that line if it has no valid id (old journals)."""
    try:
        run_id = str(parse_json(first_line)["facts"]["run_id"])
    except (ValueError, KeyError, TypeError):
        run_id = ""
    return run_id if _RUN_ID.fullmatch(run_id) else hashlib.sha256(first_line).hexdigest()[:32]
