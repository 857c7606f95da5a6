"""What may go from a runs folder, and its removal: checkpoints beyond the best, runs that came to nothing, leftovers.

Never a best checkpoint of a metric that a run monitored, never the last one of any run, never anything of a run that a
process trains in or that cannot be judged, and only files that are a run's own. Whatever is removed is first renamed,
or goes before the journal does: cut off in the middle, a smaller run is left and not a broken one.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trueloop.app.runs.rollback import STAGING_NAME
from trueloop.app.training.run_folder import RUN_FILES, RunFolder
from trueloop.core.errors import InvalidConfig, TrueloopError
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.overview import Overview, all_monitored_metrics, read_overview
from trueloop.runs.queries.ranking import rank_points
from trueloop.runs.queries.running import is_training
from trueloop.training.checkpoint.checkpoints import Checkpoint, CheckpointFolder

Kind = Literal["checkpoint", "run", "leftover"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupOptions:
    """What is to go."""

    keep_best: int | None = None
    """Of each run, keep only so many best checkpoints by each monitored metric, and the last; None = keep all."""
    unfinished: bool = False
    """Remove runs that ended unfinished and left no checkpoint to go on from."""
    older_than_days: float = 0.0
    """Only of runs whose journal was not written for so long."""

    def check(self) -> None:
        """Refuse wishes that would remove a best checkpoint, or nothing at all.

        Raises:
            InvalidConfig: names the wish.
        """
        if self.keep_best is None and not self.unfinished:
            raise InvalidConfig(
                "Nothing was asked to be removed.",
                fix="Say --keep-best N for checkpoints, --unfinished for runs that came to nothing, or both.",
            )
        if self.keep_best is not None and self.keep_best < 1:
            raise InvalidConfig(
                f"--keep-best is {self.keep_best}.",
                why="The best checkpoint of a run is never removed.",
                fix="Keep 1 or more.",
            )
        if not 0 <= self.older_than_days < math.inf:
            raise InvalidConfig(f"--older-than is {self.older_than_days}.", fix="Give a number of days.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupItem:
    """One thing that may go."""

    kind: Kind
    path: Path
    bytes: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        """As `--json` tells it."""
        return {"kind": self.kind, "path": str(self.path), "bytes": self.bytes, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupPlan:
    """What may go, and what was left alone though it was asked for, by path with the reason."""

    items: Sequence[CleanupItem]
    skipped: Sequence[tuple[Path, str]]


def plan_cleanup(runs: Sequence[Overview], root: Path, options: CleanupOptions) -> CleanupPlan:
    """Say what may go; nothing is changed.

    Args:
        runs: to look through.
        root: where rollbacks that were killed may have left something.
        options: checked already.

    Cost: reads the manifests of all checkpoints of these runs, and the journals of those of which some may go.
    """
    items: list[CleanupItem] = []
    spared: list[tuple[Path, str]] = []
    for run in runs:
        if not _is_old(run.path / "journal.jsonl", options):
            continue
        if reason := _reason_to_skip(run):
            spared.append((run.path, reason))
            continue
        try:
            items += _removable_items(run, options)
        except (TrueloopError, OSError) as error:
            spared.append((run.path, error.what if isinstance(error, TrueloopError) else str(error)))
    for path in _leftover_rollbacks(root):
        if _is_old(path, options):
            items.append(_make_item("leftover", path, "of a rollback that was killed"))
    return CleanupPlan(items=items, skipped=spared)


def clean_up(runs: Sequence[Overview], root: Path, options: CleanupOptions) -> CleanupPlan:
    """Remove what `plan_cleanup` says, run by run, each looked at again while its lock is held.

    Returns:
        What was removed, and what was left alone.
    """
    removed: list[CleanupItem] = []
    spared: list[tuple[Path, str]] = []
    plan = plan_cleanup(runs, root, options)
    touched = {item.path if item.kind == "run" else item.path.parent.parent for item in plan.items}
    for run in (run for run in runs if run.path in touched):
        try:
            with RunFolder(run.path).lock():
                for item in _removable_items(read_overview(run.path), options):
                    _remove_item(item)
                    removed.append(item)
        except (TrueloopError, OSError) as error:
            spared.append((run.path, error.what if isinstance(error, TrueloopError) else str(error)))
    for item in plan.items:
        if STAGING_NAME.fullmatch(item.path.name):
            shutil.rmtree(item.path, ignore_errors=True)
            removed.append(item)
    return CleanupPlan(items=removed, skipped=[*plan.skipped, *spared])


def _is_old(path: Path, options: CleanupOptions) -> bool:
    try:
        return time.time() - path.stat().st_mtime >= options.older_than_days * 86400
    except OSError:
        return False


def _reason_to_skip(run: Overview) -> str:
    """Say why a run is left alone; empty where it is not."""
    training = is_training(run.path)
    if training is not False:
        return "a process is training in it" if training else "whether a process trains in it cannot be told here"
    if run.state == "damaged":
        return run.problem
    if (run.path / "checkpoints").is_symlink():
        return "its checkpoints lie elsewhere, behind a link"
    return ""


def _removable_items(run: Overview, options: CleanupOptions) -> Iterator[CleanupItem]:
    """List what may go of a run in which nobody trains."""
    folder = CheckpointFolder(run.path / "checkpoints", writing=False)
    whole = folder.checkpoints()
    if options.unfinished and not whole and (reason := _reason_to_remove(run)):
        yield _make_item("run", run.path, reason)
        return
    if (run.path / "checkpoints").is_dir():
        for path in folder.leftovers():
            yield _make_item("leftover", path, "of a save or a removal that was killed")
    if options.keep_best is not None and len(whole) > 1:
        kept = _updates_to_keep(run, whole, options.keep_best)
        for checkpoint in whole:
            if checkpoint.update not in kept:
                yield _make_item("checkpoint", checkpoint.path, "neither the last nor of the best")


def _reason_to_remove(run: Overview) -> str:
    """Say why a run without a checkpoint may go; empty where it ended well, or could still be continued."""
    end = run.record.get("end", "")
    if end in ("finished", "early_stop", "damaged") or (run.path / "final").exists():
        return ""
    if not run.problem and _has_mirror(run):
        return ""
    return f"it ended as {end or 'killed'} and left no checkpoint to go on from"


def _has_mirror(run: Overview) -> bool:
    """A run may be continued from its mirror, without a checkpoint here."""
    config: Any = read_journal(run.path).facts.get("config")
    checkpoint: Any = config.get("checkpoint") if isinstance(config, dict) else None
    return bool(checkpoint.get("mirror")) if isinstance(checkpoint, dict) else False


def _updates_to_keep(run: Overview, whole: Sequence[Checkpoint], best: int) -> set[int]:
    """Return the updates whose checkpoints stay: the last, and the best by each metric that was ever monitored."""
    history = read_journal(run.path)
    kept = {whole[-1].update}
    there = {checkpoint.update for checkpoint in whole}
    for metric, mode in all_monitored_metrics(run.path):
        sign = 1 if mode == "min" else -1
        told = [
            (sign * value, each.update) for each in whole if not math.isnan(value := each.metrics.get(metric, math.nan))
        ]
        kept |= {update for _, update in sorted(told)[:best]}
        kept |= {point.update for point in rank_points(history, metric, mode)[:best] if point.update in there}
    return kept


def _leftover_rollbacks(root: Path) -> list[Path]:
    try:
        found = [path for path in root.iterdir() if STAGING_NAME.fullmatch(path.name) and not path.is_symlink()]
    except OSError:
        return []
    return [path for path in found if is_training(path) is False]


def _make_item(kind: Kind, path: Path, reason: str) -> CleanupItem:
    return CleanupItem(kind=kind, path=path, bytes=_size(path, own_only=kind == "run"), reason=reason)


def _size(path: Path, *, own_only: bool) -> int:
    tops = [path / name for name in RUN_FILES] if own_only else [path]
    total = 0
    for top in tops:
        if top.is_symlink() or not top.is_dir():
            total += top.lstat().st_size if os.path.lexists(top) else 0
        for folder, _, files in os.walk(top):
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
    """Remove a run's own files, the journal last; the folder too, unless there is something else in it."""
    for own in (path / name for name in reversed(RUN_FILES)):
        if own.is_dir() and not own.is_symlink():
            shutil.rmtree(own)
        else:
            own.unlink(missing_ok=True)
    if [entry.name for entry in path.iterdir()] == [".lock"]:
        (path / ".lock").unlink()
        path.rmdir()  # refused where another process has begun a run in it meanwhile
