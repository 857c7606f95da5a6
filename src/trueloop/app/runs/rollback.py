"""A new run that starts where another one was: its checkpoint and its history up to there, the other left as it is."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from trueloop.app.training.run_folder import RunFolder, numbered_names
from trueloop.core.errors import CheckpointError, InvalidConfig, RunFolderError
from trueloop.runs.history import History
from trueloop.runs.journal import JOURNAL_NAME, read_journal
from trueloop.runs.queries.fork_journal import fork_journal, rollback_note
from trueloop.runs.queries.overview import monitored_metric, read_overview, require_readable
from trueloop.runs.queries.ranking import rank_points
from trueloop.runs.run_id import read_run_id
from trueloop.training.checkpoint.checkpoints import Checkpoint, CheckpointFolder
from trueloop.training.checkpoint.durable_files import sync
from trueloop.training.checkpoint.manifest import verify

STAGING_NAME = re.compile(r"\.rolling-back-[0-9a-f]{8}")
"""The name of a folder in which a rollback is being made; left behind only by one that was killed."""
_MAX_COPY_ATTEMPTS = 3  # a run that trains may remove the checkpoint that is being copied; then another one is the last
_TIMESTAMP_SUFFIX = re.compile(r"-\d{8}-\d{6}(-\d+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult:
    """A run that is ready to go on."""

    run_dir: Path
    run_id: str
    checkpoint: Checkpoint
    """In the new run."""
    source: Path
    command: Sequence[str]
    """The words that go on with it; empty where the journal does not say how the run was started."""
    notes: Sequence[str]
    """What a person should know before."""


def roll_back(source: Path, to: str, run_dir: Path | None = None) -> RollbackResult:
    """Make a run folder that starts from a checkpoint of another run, which is only read.

    The checkpoint is copied and every byte of it checked; so is the best one up to there, which the new run may ship.
    The folder is made under a hidden name beside and renamed when it is whole.

    Args:
        source: run folder; it may be training.
        to: "best", by the monitored metric; "last"; or the number of an update.
        run_dir: of the new run, absent or empty; None = a new name beside the source.

    Raises:
        InvalidConfig: ``to`` is none of these.
        RunFolderError: the journal cannot be read, or the new folder not be made.
        CheckpointError: there is no such checkpoint, or it is not whole; says which there are.
    """
    require_readable(read_overview(source))
    history = read_journal(source)
    place = _require_empty(run_dir) if run_dir else _default_run_dir(source)
    beside = place.parent / f".rolling-back-{secrets.token_hex(4)}"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with RunFolder(beside).lock():
            target, notes = _copy_checkpoints(source, history, to, beside)
            history = read_journal(source)  # of a run that trains, at least up to what was copied
            number = _write_journal(source, beside, place, target.update)
            if (source / "config.json").is_file():
                shutil.copyfile(source / "config.json", beside / "config.json")
            place = _publish(beside, place, anew=run_dir is None)
    except OSError as error:
        raise RunFolderError(f"The new run {place} cannot be made: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    command, more = _resume_command(history, place)
    return RollbackResult(
        run_dir=place,
        run_id=number,
        checkpoint=CheckpointFolder(place / "checkpoints", writing=False).checkpoints()[-1],
        source=source,
        command=command,
        notes=[*notes, *more],
    )


def _require_empty(run_dir: Path) -> Path:
    if run_dir.is_symlink() or (run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir()))):
        raise RunFolderError(
            f"{str(run_dir)!r} exists and is not empty.",
            why="A rollback makes a new run; it never writes into one that is there.",
            fix="Name a folder that does not exist, or leave --run-dir out.",
        )
    return run_dir


def _default_run_dir(source: Path) -> Path:
    """Choose SOURCE's name with the present time, beside it."""
    resolved = source.resolve()
    parent = resolved.parent if source.name in ("", ".", "..") else source.parent
    return parent / f"{_TIMESTAMP_SUFFIX.sub('', resolved.name)}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _publish(beside: Path, place: Path, *, anew: bool) -> Path:
    """Give the finished folder its name; of a chosen name that was taken meanwhile, the next one."""
    for path in numbered_names(place) if anew else [place]:
        try:
            path.mkdir(exist_ok=not anew)  # from here on the name is ours: nobody else makes a run of it
        except FileExistsError:
            continue
        beside.rename(path)  # takes the place of an empty folder at once; refused where it no longer is empty
        sync(path.parent)
        return path
    raise AssertionError("there is no end of names")


def _copy_checkpoints(source: Path, history: History, to: str, beside: Path) -> tuple[Checkpoint, list[str]]:
    """Copy the checkpoints that the new run needs; try again where the source removed one meanwhile."""
    metric, mode = monitored_metric(history.facts)
    folder = CheckpointFolder(source / "checkpoints", metric=metric, mode=mode, writing=False)
    for attempt in range(1, _MAX_COPY_ATTEMPTS + 1):
        target = _find_checkpoint(folder, history, to)
        try:
            _copy_checkpoint(target, beside / "checkpoints")
            return target, _copy_best(folder, history, target, beside / "checkpoints")
        except (OSError, CheckpointError) as error:
            shutil.rmtree(beside / "checkpoints", ignore_errors=True)
            gone = isinstance(error, FileNotFoundError) or not target.path.exists()
            if attempt == _MAX_COPY_ATTEMPTS or not gone:
                raise
    raise AssertionError("the last attempt returns or raises")


def _find_checkpoint(folder: CheckpointFolder, history: History, to: str) -> Checkpoint:
    there = {checkpoint.update: checkpoint for checkpoint in folder.checkpoints()}
    if not there:
        raise CheckpointError(
            "The run has no whole checkpoint.", fix=" ".join(folder.problems()) or "Choose another run."
        )
    if to == "last":
        return there[max(there)]
    if to == "best":
        return _best_checkpoint(folder, history, there)
    if not (to.isascii() and to.isdigit() and len(to) < 20):
        raise InvalidConfig(f"--to is {to!r}.", fix="Say best, last, or the number of an update.")
    if int(to) not in there:
        near = min(there, key=lambda update: abs(update - int(to)))
        raise CheckpointError(
            f"There is no whole checkpoint of update {int(to)}.",
            why=f"There are those of {', '.join(map(str, sorted(there)))}.",
            fix=f"The nearest is --to {near}.",
        )
    return there[int(to)]


def _best_checkpoint(folder: CheckpointFolder, history: History, there: dict[int, Checkpoint]) -> Checkpoint:
    """Return the best of all evaluations; never silently the best of what happens to be left."""
    metric, mode = monitored_metric(history.facts)
    points = rank_points(history, metric, mode)
    if not points:
        raise CheckpointError(
            f"Which checkpoint is best is not known: {metric!r} was never measured, or never finite.",
            fix=f"Choose an update: {', '.join(map(str, sorted(there)))}.",
        )
    if points[0].update in there:
        return there[points[0].update]
    left = folder.best()
    raise CheckpointError(
        f"The best checkpoint, of update {points[0].update} ({metric} {points[0].value:.6g}), is missing.",
        why="It was removed, is damaged, or was never saved.",
        fix=f"The best of those that are there is --to {left.update} ({metric} {left.metrics[metric]:.6g})."
        if left
        else f"Choose an update: {', '.join(map(str, sorted(there)))}.",
    )


def _copy_best(folder: CheckpointFolder, history: History, target: Checkpoint, into: Path) -> list[str]:
    """Copy the best checkpoint before the target as well, so that the new run ships what the old one would have."""
    metric, mode = monitored_metric(history.facts)
    before = [point for point in rank_points(history, metric, mode) if point.update <= target.update]
    if not before or before[0].update == target.update:
        return []
    best = {checkpoint.update: checkpoint for checkpoint in folder.checkpoints()}.get(before[0].update)
    if best is None:
        gone = (
            f"The best checkpoint up to there, of update {before[0].update}, is gone: should nothing better follow, "
            "the new run ships other weights than the old one would have."
        )
        return [gone]
    _copy_checkpoint(best, into)
    return []


def _copy_checkpoint(checkpoint: Checkpoint, into: Path) -> None:
    """Copy one folder through to the disk, and check every byte of the copy."""
    copy = into / checkpoint.path.name
    copy.mkdir(parents=True)
    for file in checkpoint.path.iterdir():
        if file.is_file() and not file.is_symlink():
            shutil.copyfile(file, copy / file.name)
    try:
        verify(copy)
    except CheckpointError as error:
        raise CheckpointError(
            f"{checkpoint.path} cannot be taken: the copy of it is not what was saved.", why=error.what, fix=error.fix
        ) from error
    for item in (*copy.iterdir(), copy, into):
        sync(item)


def _write_journal(source: Path, beside: Path, place: Path, update: int) -> str:
    number = secrets.token_hex(16)
    note = rollback_note(source=source, run_id=read_run_id(source / JOURNAL_NAME) or "", update=update)
    fork_journal(source, beside, update=update, run_id=number, note=note, final_dir=place)
    told = read_journal(beside)
    if told.last_update != update:
        raise RunFolderError(
            f"The journal of {source} ends at update {told.last_update}, its checkpoint at {update}.",
            why="The new run would have a gap in its history.",
            fix="Choose another checkpoint, with --to.",
        )
    sync(beside / JOURNAL_NAME)
    sync(beside)
    return number


def _resume_command(history: History, place: Path) -> tuple[list[str], list[str]]:
    """Return the words that go on with the run, from those that began the old one; and what to know about them."""
    notes: list[str] = []
    told = history.facts.get("command")
    recipe = history.facts.get("recipe")
    if isinstance(told, list) and cast("list[Any]", told)[:2] == ["trueloop", "train"] and len(told) > 2:  # pyright: ignore[reportUnknownArgumentType]
        words = [str(word) for word in cast("list[Any]", told)]
    elif isinstance(recipe, str):
        words = ["trueloop", "train", recipe]
        notes.append("The journal does not say with which settings the run was started: add those you gave then.")
    else:
        return [], ["It was started from Python: call the same Trainer with this run_dir, and it goes on."]
    for flag in ("--run-dir", "--checkpoint.mirror"):
        if flag in words:
            at = words.index(flag)
            del words[at : at + 2]
    words[3:3] = ["--run-dir", str(place)]
    if _has_mirror(history):
        words += ["--checkpoint.mirror", "none"]
        notes.append("The old run has a mirror, which stays its own: the new one has none unless you name another.")
    return words, notes


def _has_mirror(history: History) -> bool:
    tree: Any = history.facts.get("config")
    for key in ("checkpoint", "mirror"):
        tree = cast("dict[str, Any]", tree).get(key) if isinstance(tree, dict) else None
    return bool(tree)


def as_json(result: RollbackResult) -> str:
    """Return it as one JSON object."""
    import shlex

    record = {
        "run_dir": str(result.run_dir),
        "run_id": result.run_id,
        "update": result.checkpoint.update,
        "checkpoint": str(result.checkpoint.path),
        "source": str(result.source),
        "command": shlex.join(result.command) or None,
        "notes": list(result.notes),
    }
    return json.dumps(record)
