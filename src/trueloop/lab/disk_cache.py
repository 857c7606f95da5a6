"""Answers that take seconds to compute, kept in the user's cache folder by a name made of all that they follow from."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from trueloop.core.json_text import parse_json

MAX_BYTES: Final = 2**20  # bytes of one answer
MAX_ENTRIES: Final = 400  # of them: more than the catalogue has, over a few versions
_KEY: Final = re.compile(r"[0-9a-f]{16,64}")


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's folder of what can be computed again."""
    given = environment.get("XDG_CACHE_HOME", "")
    root = Path(given) if given.startswith("/") else Path.home() / ".cache"
    return root / "trueloop"


class DiskCache:
    """Answers by key. What cannot be read or written is computed again; nobody is told.

    Args:
        folder: made when something is first written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> dict[str, Any] | None:
        """Return an answer, or None."""
        path = self._path(key)
        try:
            if path.stat().st_size > MAX_BYTES:
                return None
            told: Any = parse_json(path.read_bytes())
        except (OSError, ValueError):
            return None
        return cast("dict[str, Any]", told) if isinstance(told, dict) else None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer, strict JSON already; the oldest ones go."""
        path = self._path(key)
        beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside.write_text(json.dumps(answer, allow_nan=False), encoding="utf-8")
            beside.replace(path)
            self._evict()
        except (OSError, ValueError):
            with contextlib.suppress(OSError):
                beside.unlink()

    def _path(self, key: str) -> Path:
        assert _KEY.fullmatch(key)
        return self._folder / f"{key}.json"

    def _evict(self) -> None:
        with os.scandir(self._folder) as entries:
            ours = [entry for entry in entries if _KEY.match(entry.name)]
        if len(ours) > MAX_ENTRIES:
            for entry in sorted(ours, key=lambda each: each.stat().st_mtime)[:-MAX_ENTRIES]:
                os.unlink(entry.path)  # noqa: PTH108 - of a scan
