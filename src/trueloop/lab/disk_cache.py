"""Caches slow answers as JSON files in the user's cache folder."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from trueloop.core.json_text import parse_json

MAX_BYTES: Final = 2**20  # largest size of one answer
MAX_ENTRIES: Final = 400  # largest number of answers: enough for all failures of the catalogue in a few versions
_KEY: Final = re.compile(r"[0-9a-f]{16,64}")


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's cache folder."""
    configured = environment.get("XDG_CACHE_HOME", "")
    root = Path(configured) if configured.startswith("/") else Path.home() / ".cache"
    return root / "trueloop"


class DiskCache:
    """A cache of answers by key; an unreadable file counts as missing, and write errors are ignored.

    Args:
        folder: folder of the files, created by the first write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the cached answer, or None."""
        path = self._path(key)
        try:
            if path.stat().st_size > MAX_BYTES:
                return None
            answer: Any = parse_json(path.read_bytes())
        except (OSError, ValueError):
            return None
        return cast("dict[str, Any]", answer) if isinstance(answer, dict) else None

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Store an answer of strict JSON values, and delete the oldest entries above the limit."""
        path = self._path(key)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_text(json.dumps(answer, allow_nan=False), encoding="utf-8")
            temporary.replace(path)
            self._evict()
        except (OSError, ValueError):
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _path(self, key: str) -> Path:
        assert _KEY.fullmatch(key)
        return self._folder / f"{key}.json"

    def _evict(self) -> None:
        with os.scandir(self._folder) as entries:
            cached = [entry for entry in entries if _KEY.match(entry.name)]
        if len(cached) > MAX_ENTRIES:
            for entry in sorted(cached, key=lambda each: each.stat().st_mtime)[:-MAX_ENTRIES]:
                os.unlink(entry.path)  # noqa: PTH108 - from scandir
