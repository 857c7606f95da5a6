"""The mark of a store that is files: one small JSON file beside them, replaced whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from trueloop.core.json_text import parse_json
from trueloop.runs.tracking.sink import StoreError, SyncCursor


class MarkFile:
    """Says whose files lie in its folder and how far they go.

    Args:
        path: need not exist.
        run_id: the run that it is asked about, and written for.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path, self._run_id = path, run_id
        self.about: dict[str, Any] = {}
        """What else the sink wants to know again, JSON-ready."""

    @property
    def folder(self) -> Path:
        """The folder it lies in."""
        return self.path.parent

    @property
    def is_ours(self) -> bool:
        """Whether it is there, and this run's."""
        return self._record().get("run_id") == self._run_id

    def read(self) -> SyncCursor | None:
        """Read the mark of this run; None where there is none."""
        record = self._record()
        if record.get("run_id") != self._run_id:
            return None
        about = record.get("about")
        self.about = cast("dict[str, Any]", about) if isinstance(about, dict) else {}
        return SyncCursor.parse(str(record.get("mark", "")))

    def write(self, mark: SyncCursor | None) -> None:
        """Replace it.

        Args:
            mark: None = the files here are this run's, and nothing is known of how far they go.

        Raises:
            StoreError: it cannot be written.
        """
        record = {"run_id": self._run_id, "mark": mark.to_json() if mark else "", "about": self.about}
        beside = self.path.with_name(self.path.name + ".part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            beside.replace(self.path)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written: {error.strerror or error}.") from error

    def remove(self) -> None:
        """Delete it."""
        self.path.unlink(missing_ok=True)

    def _record(self) -> dict[str, Any]:
        try:
            record: Any = parse_json(self.path.read_bytes())
        except (OSError, ValueError):
            return {}
        return cast("dict[str, Any]", record) if isinstance(record, dict) else {}
