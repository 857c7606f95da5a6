"""The number of a run: the same over all its processes, wherever its folder is moved to."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

_MOST: Final = 4_000_000  # bytes of the first line, which holds a recipe's source and every package


def run_id(journal: Path) -> str | None:
    """Return 32 hexadecimal digits, from the first line of a journal; None where no run has started in it.

    Of a journal that was begun before runs had numbers it is a hash of that line.
    """
    try:
        with journal.open("rb") as file:
            line = file.readline(_MOST)
        record: Any = json.loads(line)
        named = record["facts"].get("run_id") if record["event"] == "run_started" else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not line.endswith(b"\n") or record["event"] != "run_started":
        return None
    return named if isinstance(named, str) and _is_id(named) else hashlib.sha256(line).hexdigest()[:32]


def _is_id(word: str) -> bool:
    return len(word) == 32 and set(word) <= set("0123456789abcdef")
