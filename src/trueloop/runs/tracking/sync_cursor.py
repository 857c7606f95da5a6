"""Keep the sync cursor of a file-based store in a small JSON file, replaced atomically."""

import json
from pathlib import Path
from typing import Any, cast

from trueloop.core.json_text import parse_json_object
from trueloop.runs.tracking.sink import StoreError, SyncCursor


class CursorFile:
    """The cursor file of one run, which also records which run owns the folder.

    Args:
        path: the file, which need not exist.
        run_id: id of the run whose cursor is read and written.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.path, self._run_id = path, run_id
        self.extra: dict[str, Any] = {}
        """Further JSON-ready state of the sink."""

    @property
    def folder(self) -> Path:
        """The folder that contains the file."""
        return self.path.parent

    @property
    def belongs_to_run(self) -> bool:
        """True if the file exists and belongs to this run."""
        return self._record().get("run_id") == self._run_id

    def read(self) -> SyncCursor | None:
        """Read the cursor of this run; None if the file has none."""
        record = self._record()
        if record.get("run_id") != self._run_id:
            return None
        extra = record.get("extra")
        self.extra = cast("dict[str, Any]", extra) if isinstance(extra, dict) else {}
        return SyncCursor.parse(str(record.get("cursor", "")))

    def write(self, cursor: SyncCursor | None) -> None:
        """Replace the file.

        Args:
            cursor: the new cursor; None = the folder belongs to this run, but how much was written is unknown.

        Raises:
            StoreError: the file cannot be written.
        """
        record = {"run_id": self._run_id, "cursor": cursor.to_json() if cursor else "", "extra": self.extra}
        partial = self.path.with_name(self.path.name + ".part")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            partial.replace(self.path)
        except OSError as error:
            raise StoreError(f"{self.path} cannot be written: {error.strerror or error}.") from error

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)

    def _record(self) -> dict[str, Any]:
        try:
            return parse_json_object(self.path.read_bytes())
        except OSError:
            return {}
