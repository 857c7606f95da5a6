"""The mark of a store that is files: one small JSON file beside them, replaced whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trueloop.engines.store.tracking.sink import Mark, StoreError


class MarkFile:
    """Says whose files lie in its folder and how far they go.

    Args:
        path: need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = ""
        self.about: dict[str, Any] = {}
        """What else the sink wants to know again, JSON-ready."""

    @property
    def folder(self) -> Path:
        """The folder it lies in."""
        return self.path.parent

    def belongs_to(self, run_id: str) -> bool:
        """Say whether it is this run's."""
        return self._record().get("run_id") == run_id

    def read(self, run_id: str) -> Mark | None:
        """Read the mark of this run; None where there is none."""
        record = self._record()
        self.run_id = run_id
        if record.get("run_id") != run_id:
            return None
        self.about = dict(record.get("about", {}))
        return Mark.of(str(record.get("mark", "")))

    def write(self, mark: Mark) -> None:
        """Replace it.

        Raises:
            StoreError: it cannot be written.
        """
        record = {"run_id": self.run_id, "mark": mark.text(), "about": self.about}
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
            record: Any = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}
