"""Choose the folder of a run without --run-dir: the folder of the same unfinished run, or a new folder."""

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
FINISHED = ("finished", "early_stop")  # reasons of `RunEnded` after which a run is not resumed
_TAIL_BYTES = 1_000_000  # more than a line of a journal, the longest of which contain a confusion matrix


class RunFolderChooser:
    """Chooses a folder when the identity of the run is known, and reports the choice with its reason.

    The newest folder ROOT/NAME-TIME with the same identity decides. It has the same settings, options, code, data,
    model, machine and versions, so that resuming gives the weights of an uninterrupted run. If that run is unfinished
    (killed, interrupted, preempted, failed) and no process is training in it, it is resumed; otherwise a new folder is
    created.

    Args:
        name: name of the recipe.
        report: function that is called with one sentence about the choice.
        fresh: True to always create a new folder.
        root: the folder of the runs.
    """

    def __init__(
        self, name: str, report: Callable[[str], None], *, fresh: bool = False, root: Path = DEFAULT_ROOT
    ) -> None:
        self._name, self._report, self._fresh, self._root = name, report, fresh, root

    def __call__(self, identity: Identity) -> Path:
        """Return the folder of the unfinished run, or a new empty folder."""
        reason = ""  # why the newest unfinished run is not resumed
        for path in () if self._fresh else self._newest_first():
            try:
                resume_point = _resume_point(path, identity)
            except CheckpointError as error:  # unreadable, or written by a newer trueloop
                reason = reason or f"; {error.what.rstrip('.')}"
                continue
            if resume_point is None:
                continue
            update, differences = resume_point
            if differences.same_run:
                return self._resume_or_create(path, update)
            if not reason and _end_reason(path) not in FINISHED:
                change = f"{differences.decisive[0]}" + (" and more" if len(differences.decisive) > 1 else "")
                reason = f"; {path} is unfinished, but {change}"
        return self._create(reason)

    def _resume_or_create(self, path: Path, update: int) -> Path:
        """Return the folder of the same run if it can be resumed after ``update``, else a new folder."""
        end_reason = _end_reason(path)
        if end_reason in FINISHED:
            return self._create(f"; the same run has finished in {path}")
        if not _is_unlocked(path):
            return self._create(f"; another process is training the same run in {path}")
        endings = {"interrupted": "was interrupted", "preempted": "was preempted", "failed": "failed"}
        ending = endings.get(end_reason, "was killed")
        self._report(f"Resuming {path}, which {ending}, after update {update} (--fresh: a new run).")
        return path

    def _create(self, reason: str) -> Path:
        path = create_run_folder(self._name, self._root)
        self._report(f"New run in {path}{reason}.")
        return path

    def _newest_first(self) -> list[Path]:
        pattern = re.compile(re.escape(self._name) + r"-(\d{8}-\d{6})(?:-(\d+))?")

        def sort_key(match: re.Match[str]) -> tuple[str, int]:
            return match[1], int(match[2] or 1)

        names = [path.name for path in self._root.iterdir()] if self._root.is_dir() else []
        matches = sorted(filter(None, map(pattern.fullmatch, names)), key=sort_key, reverse=True)
        return [self._root / match[0] for match in matches]


def create_run_folder(name: str, root: Path = DEFAULT_ROOT) -> Path:
    """Create a new folder ROOT/NAME-TIME; two processes in the same second create different folders."""
    stem = root / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    for path in numbered_names(stem):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:
            pass  # `RunFolder` will raise the same error with a fix
        return path
    raise AssertionError("numbered_names is infinite")


def _resume_point(path: Path, identity: Identity) -> tuple[int, Differences] | None:
    """Return the update of a folder's newest checkpoint, and how its identity differs; None without a checkpoint."""
    checkpoint = CheckpointFolder(path / "checkpoints", writing=False).latest()
    saved = saved_identity(checkpoint) if checkpoint else None
    return (checkpoint.update, compare(saved, identity)) if checkpoint and saved else None


def _end_reason(path: Path) -> str:
    """Return the reason why the run in a folder last ended; "" if the journal does not record it."""
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


def _is_unlocked(path: Path) -> bool:
    try:
        with RunFolder(path).lock():
            return True
    except RunFolderError:
        return False
