"""Remove all but the best checkpoints, runs without a result, and leftovers from a folder of runs.

Never removed are the best checkpoint by any metric that a run monitored, the last checkpoint of a run, a run that is
training or whose state is unknown, and files that trueloop did not write. An interrupted removal leaves a smaller but
valid run: items are renamed before they are removed, or removed before the journal.
"""

import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trueloop.app.runs.rollback import STAGING_NAME
from trueloop.app.training.run_folder import RUN_FILES, RunFolder, remove_file_or_folder
from trueloop.core.errors import InvalidConfig, TrueloopError
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.overview import Overview, all_monitored_metrics, read_overview, recorded_setting
from trueloop.runs.queries.ranking import rank_points
from trueloop.runs.queries.running import is_training
from trueloop.training.checkpoint.checkpoints import Checkpoint, CheckpointFolder

Kind = Literal["checkpoint", "run", "leftover"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupOptions:
    """What to remove."""

    keep_best: int | None = None
    """Number of best checkpoints to keep per run and monitored metric, in addition to the last; None = keep all."""
    unfinished: bool = False
    """True = remove unfinished runs without a checkpoint to resume from."""
    older_than_days: float = 0.0
    """Minimum number of days since the last write to a run's journal; runs written to more recently are kept."""

    def check(self) -> None:
        """Refuse options that would remove the best checkpoint, or that select nothing.

        Raises:
            InvalidConfig: an option is invalid.
        """
        if self.keep_best is None and not self.unfinished:
            raise InvalidConfig(
                "Nothing is selected for removal.",
                fix="Pass --keep-best N for checkpoints, --unfinished for runs without a result, or both.",
            )
        if self.keep_best is not None and self.keep_best < 1:
            raise InvalidConfig(
                f"--keep-best is {self.keep_best}.",
                why="The best checkpoint of a run is never removed.",
                fix="Pass --keep-best 1 or more.",
            )
        if not 0 <= self.older_than_days < math.inf:
            raise InvalidConfig(f"--older-than is {self.older_than_days}.", fix="Pass a number of days.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupItem:
    """A file or folder that may be removed."""

    kind: Kind
    path: Path
    bytes: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Return the output of `--json`."""
        return {"kind": self.kind, "path": str(self.path), "bytes": self.bytes, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPlan:
    """Items to remove, and runs to skip."""

    items: Sequence[CleanupItem]
    skipped: Sequence[tuple[Path, str]]
    """Paths of the skipped runs, each with the reason."""


def plan_cleanup(runs: Sequence[Overview], root: Path, options: CleanupOptions) -> CleanupPlan:
    """Return what may be removed, without removing it.

    Args:
        runs: the runs to clean up.
        root: folder of the runs, which may contain leftovers of killed rollbacks.
        options: validated options.

    Cost: reads the manifests of all checkpoints of these runs, and the journals of runs with several checkpoints.
    """
    items: list[CleanupItem] = []
    skipped: list[tuple[Path, str]] = []
    for run in runs:
        if not _is_old(run.path / "journal.jsonl", options):
            continue
        if reason := _reason_to_skip(run):
            skipped.append((run.path, reason))
            continue
        try:
            items += _removable_items(run, options)
        except (TrueloopError, OSError) as error:
            skipped.append((run.path, _first_sentence(error)))
    for path in _leftover_rollbacks(root):
        if _is_old(path, options):
            items.append(_make_item("leftover", path, "left by an interrupted rollback"))
    return CleanupPlan(items=items, skipped=skipped)


def clean_up(runs: Sequence[Overview], root: Path, options: CleanupOptions) -> CleanupPlan:
    """Remove the items of `plan_cleanup`; each run is locked and checked again before its items are removed.

    Returns:
        The removed items and the skipped runs.
    """
    removed: list[CleanupItem] = []
    skipped: list[tuple[Path, str]] = []
    plan = plan_cleanup(runs, root, options)
    affected = {item.path if item.kind == "run" else item.path.parent.parent for item in plan.items}
    for run in (run for run in runs if run.path in affected):
        try:
            with RunFolder(run.path).lock():
                for item in _removable_items(read_overview(run.path), options):
                    _remove_item(item)
                    removed.append(item)
        except (TrueloopError, OSError) as error:
            skipped.append((run.path, _first_sentence(error)))
    for item in plan.items:
        if STAGING_NAME.fullmatch(item.path.name):
            shutil.rmtree(item.path, ignore_errors=True)
            removed.append(item)
    return CleanupPlan(items=removed, skipped=[*plan.skipped, *skipped])


def _first_sentence(error: TrueloopError | OSError) -> str:
    return error.what if isinstance(error, TrueloopError) else str(error)


def _is_old(path: Path, options: CleanupOptions) -> bool:
    try:
        return time.time() - path.stat().st_mtime >= options.older_than_days * 86400
    except OSError:
        return False


def _reason_to_skip(run: Overview) -> str:
    """Return why a run must be skipped; "" if it can be cleaned up."""
    training = is_training(run.path)
    if training is not False:
        return "a process is training in it" if training else "it is unknown whether a process is training in it"
    if run.state == "damaged":
        return run.problem
    if (run.path / "checkpoints").is_symlink():
        return "its checkpoints folder is a link"
    return ""


def _removable_items(run: Overview, options: CleanupOptions) -> Iterator[CleanupItem]:
    """Yield the removable items of a run that is not training."""
    folder = CheckpointFolder(run.path / "checkpoints", writing=False)
    checkpoints = folder.checkpoints()
    if options.unfinished and not checkpoints and (reason := _reason_to_remove(run)):
        yield _make_item("run", run.path, reason)
        return
    if (run.path / "checkpoints").is_dir():
        for path in folder.leftovers():
            yield _make_item("leftover", path, "left by an interrupted save or removal")
    if options.keep_best is not None and len(checkpoints) > 1:
        keep = _updates_to_keep(run, checkpoints, options.keep_best)
        for checkpoint in checkpoints:
            if checkpoint.update not in keep:
                yield _make_item("checkpoint", checkpoint.path, "neither the last nor among the best")


def _reason_to_remove(run: Overview) -> str:
    """Return why a run without a checkpoint may be removed; "" if it finished or can still be resumed."""
    end = run.record.get("end", "")
    if end in ("finished", "early_stop", "damaged") or (run.path / "final").exists():
        return ""
    if not run.problem and recorded_setting(read_journal(run.path).facts, "checkpoint.mirror"):
        return ""  # the run can be resumed from the mirror
    return f"it ended as {end or 'killed'} and has no checkpoint to resume from"


def _updates_to_keep(run: Overview, checkpoints: Sequence[Checkpoint], best_count: int) -> set[int]:
    """Return the updates of the checkpoints to keep: the last one, and the best ones by each monitored metric."""
    history = read_journal(run.path)
    keep = {checkpoints[-1].update}
    existing = {checkpoint.update for checkpoint in checkpoints}
    for metric, mode in all_monitored_metrics(run.path):
        sign = 1 if mode == "min" else -1
        evaluated = [each for each in checkpoints if not math.isnan(each.metrics.get(metric, math.nan))]
        ranked = sorted(evaluated, key=lambda each: (sign * each.metrics[metric], each.update))
        keep |= {each.update for each in ranked[:best_count]}
        keep |= {point.update for point in rank_points(history, metric, mode)[:best_count] if point.update in existing}
    return keep


def _leftover_rollbacks(root: Path) -> list[Path]:
    try:
        candidates = [path for path in root.iterdir() if STAGING_NAME.fullmatch(path.name) and not path.is_symlink()]
    except OSError:
        return []
    return [path for path in candidates if is_training(path) is False]


def _make_item(kind: Kind, path: Path, reason: str) -> CleanupItem:
    return CleanupItem(kind=kind, path=path, bytes=_size(path, run_files_only=kind == "run"), reason=reason)


def _size(path: Path, *, run_files_only: bool) -> int:
    """Return the number of bytes in a file or folder; links are not followed."""
    total = 0
    for item in [path / name for name in RUN_FILES] if run_files_only else [path]:
        if item.is_symlink() or not item.is_dir():
            total += item.lstat().st_size if os.path.lexists(item) else 0
        for folder, _, files in os.walk(item):
            total += sum((Path(folder) / name).lstat().st_size for name in files)
    return total


def _remove_item(item: CleanupItem) -> None:
    if item.kind == "checkpoint":
        folder = CheckpointFolder(item.path.parent, writing=False)
        folder.remove(next(each for each in folder.checkpoints() if each.path == item.path))
    elif item.kind == "leftover":
        shutil.rmtree(item.path)
    else:
        _remove_run(item.path)


def _remove_run(path: Path) -> None:
    """Remove the files of a run, with the journal last, and its folder if it contains no other file."""
    for name in reversed(RUN_FILES):
        remove_file_or_folder(path / name)
    if [entry.name for entry in path.iterdir()] == [".lock"]:
        (path / ".lock").unlink()
        path.rmdir()  # fails if another process has started a run in this folder meanwhile
