"""Where a run goes that was given no folder: on in the one it was cut off in, or into a new one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from trueloop.app.training.run_folder import RunFolder, numbered_names
from trueloop.core.errors import CheckpointError, RunFolderError
from trueloop.core.json_text import parse_json
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.training.checkpoint.checkpoints import CheckpointFolder
from trueloop.training.checkpoint.run_identity import Differences, Identity, compare, saved_identity

DEFAULT_ROOT = Path("runs")
_TAIL_BYTES = 1_000_000  # of a journal: the line that ends a run is short, the longest ones hold a confusion matrix


class RunFolderChooser:
    """Chooses a folder once the run's identity is known, and says which and why.

    Of the folders ROOT/NAME-TIME the newest one of this very run decides: same settings, options, code, data, model,
    machine and versions, so that going on ends in the weights of an undisturbed run. Where it was cut off (killed,
    interrupted, preempted, failed) and nobody trains in it, the run continues there; else it gets a new folder.

    Args:
        name: of the recipe.
        report: given the one sentence about it.
        fresh: a new folder, whatever there is.
        root: where the folders lie.
    """

    def __init__(
        self, name: str, report: Callable[[str], None], *, fresh: bool = False, root: Path = DEFAULT_ROOT
    ) -> None:
        self._name, self._report, self._fresh, self._root = name, report, fresh, root

    def __call__(self, identity: Identity) -> Path:
        """Return the folder; a new one exists and is empty."""
        other = ""
        for path in () if self._fresh else self._newest_first():
            try:
                found = _resume_point(path, identity)
            except CheckpointError as error:  # unreadable, or a newer trueloop's
                other = other or f"; {error.what.rstrip('.')}"
                continue
            if found is None:
                continue
            update, changed = found
            end = _end_reason(path)
            if not changed.same_run:
                what = f"{changed.decisive[0]}" + (" and more" if len(changed.decisive) > 1 else "")
                other = other or ("" if end in ("finished", "early_stop") else f"; {path} is unfinished, but {what}")
                continue
            if end in ("finished", "early_stop"):
                return self._create(f"; {path} has finished the same run")
            if not _is_free(path):
                return self._create(f"; another process is training the same in {path}")
            word = {"interrupted": "interrupted", "preempted": "preempted", "failed": "broken off"}
            self._report(
                f"Continues {path}, which was {word.get(end, 'killed')}, after update {update} (--fresh: a new run)."
            )
            return path
        return self._create(other)

    def _create(self, why: str) -> Path:
        path = create_run_folder(self._name, self._root)
        self._report(f"New run in {path}{why}.")
        return path

    def _newest_first(self) -> list[Path]:
        pattern = re.compile(re.escape(self._name) + r"-(\d{8}-\d{6})(?:-(\d+))?")

        def place(match: re.Match[str]) -> tuple[str, int]:
            return match[1], int(match[2] or 1)

        names = [path.name for path in self._root.iterdir()] if self._root.is_dir() else []
        matches = sorted(filter(None, map(pattern.fullmatch, names)), key=place, reverse=True)
        return [self._root / match[0] for match in matches]


def create_run_folder(name: str, root: Path = DEFAULT_ROOT) -> Path:
    """Make ROOT/NAME-TIME, a folder that did not exist: of two processes in one second each gets its own."""
    stem = root / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for path in numbered_names(stem):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:
            pass  # `RunFolder` meets the same error, and says what to do
        return path
    raise AssertionError("there is no end of names")


def _resume_point(path: Path, identity: Identity) -> tuple[int, Differences] | None:
    """Return how far the run in a folder is and how it differs; None where there is nothing to continue."""
    checkpoint = CheckpointFolder(path / "checkpoints", writing=False).latest()
    saved = saved_identity(checkpoint) if checkpoint else None
    return (checkpoint.update, compare(saved, identity)) if checkpoint and saved else None


def _end_reason(path: Path) -> str:
    """Return how the newest process said the run ended; "" where it never said."""
    try:
        with (path / JOURNAL_NAME).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            last = file.read().splitlines(keepends=True)[-1:]
    except OSError:
        return ""
    if not last or not last[0].endswith(b"\n") or not last[0].startswith(b"{"):
        return ""
    try:
        record = parse_json(last[0])
    except ValueError:
        return ""
    return str(record.get("reason", "")) if record.get("event") == "run_ended" else ""


def _is_free(path: Path) -> bool:
    try:
        with RunFolder(path).lock():
            return True
    except RunFolderError:
        return False
