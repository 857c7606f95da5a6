"""The run folder: what lies where, made without overwriting anything that is not a run's own.

RUN/journal.jsonl               what happened, line by line
RUN/config.json                 the settings
RUN/checkpoints/update-…/       the whole state, to resume from
RUN/final/model.safetensors     the trained weights
RUN/curves.png, report.html     to look at
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trueloop.ground.errors import RunFolderError

OWN = ("journal.jsonl", "config.json", "checkpoints", "final", "curves.png", "report.html")


class RunFolder:
    """Paths inside one run's folder.

    Args:
        path: created where it does not exist.
        fresh: remove what an earlier run left in it; nothing else in the folder is touched.

    Raises:
        RunFolderError: it cannot be made or written.
    """

    def __init__(self, path: Path | str, *, fresh: bool = False) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if fresh:
                self._clear()
        except OSError as error:
            raise self._unusable(error) from error
        if not os.access(self.path, os.W_OK):
            raise self._unusable(PermissionError("it is not writable"))

    @property
    def journal(self) -> Path:
        """The journal's path."""
        return self.path / "journal.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """The trained weights."""
        return self.path / "final" / "model.safetensors"

    @property
    def curves(self) -> Path:
        """The picture of the curves."""
        return self.path / "curves.png"

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.html"

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the settings for people; nothing is read back from it."""
        try:
            (self.path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise self._unusable(error) from error

    def _clear(self) -> None:
        for name in OWN:
            item = self.path / name
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
            else:
                item.unlink(missing_ok=True)

    def _unusable(self, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"The run folder {str(self.path)!r} cannot be used: {error.strerror or error}.",
            why="The run would have nowhere to save what it learned.",
            fix="Choose another folder (--run-dir), or make this one writable.",
        )
