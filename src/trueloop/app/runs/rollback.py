"""Roll back a run: create a new run from a checkpoint and the history up to it, without changing the old run."""

import re
import secrets
import shlex
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
from trueloop.runs.queries.overview import monitored_metric, read_overview, recorded_setting, require_readable
from trueloop.runs.queries.ranking import rank_points
from trueloop.runs.run_id import read_run_id
from trueloop.training.checkpoint.checkpoints import Checkpoint, CheckpointFolder
from trueloop.training.checkpoint.durable_files import sync
from trueloop.training.checkpoint.manifest import verify

STAGING_NAME = re.compile(r"\.rolling-back-[0-9a-f]{8}")
"""Pattern of the name of a rollback's temporary folder, which remains only if the rollback was killed."""
_MAX_COPY_ATTEMPTS = 3  # a training run may remove the checkpoint that is being copied
_TIMESTAMP_SUFFIX = re.compile(r"-\d{8}-\d{6}(-\d+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult:
    """A new run that is ready to be resumed."""

    run_dir: Path
    run_id: str
    checkpoint: Checkpoint
    """The checkpoint in the new run."""
    source: Path
    """Folder of the old run."""
    command: Sequence[str]
    """The command that resumes the new run; empty if the journal does not record how the old run was started."""
    notes: Sequence[str]
    """Remarks that the user should read before resuming the run."""

    def as_json(self) -> dict[str, Any]:
        """Return the output of `--json`."""
        return {
            "run_dir": str(self.run_dir),
            "run_id": self.run_id,
            "update": self.checkpoint.update,
            "checkpoint": str(self.checkpoint.path),
            "source": str(self.source),
            "command": shlex.join(self.command) or None,
            "notes": list(self.notes),
        }


def roll_back(source: Path, to: str, run_dir: Path | None = None) -> RollbackResult:
    """Create a run folder that starts from a checkpoint of another run; the other run is not changed.

    The checkpoint and the best earlier checkpoint, whose weights may become the final weights, are copied and verified
    byte by byte. The new folder is created under a hidden name and renamed when it is complete.

    Args:
        source: folder of the old run, which may still be training.
        to: "best" by the monitored metric, "last", or the number of an update.
        run_dir: folder of the new run, which must not exist or be empty; None = a new name next to the old run.

    Raises:
        InvalidConfig: ``to`` has another value.
        RunFolderError: the journal cannot be read, or the new folder cannot be created.
        CheckpointError: the checkpoint does not exist or is damaged; the message lists the available checkpoints.
    """
    require_readable(read_overview(source))
    history = read_journal(source)
    final_dir = _require_empty(run_dir) if run_dir else _default_run_dir(source)
    staging = final_dir.parent / f".rolling-back-{secrets.token_hex(4)}"
    try:
        final_dir.parent.mkdir(parents=True, exist_ok=True)
        with RunFolder(staging).lock():
            target, notes = _copy_checkpoints(source, history, to, staging)
            history = read_journal(source)  # again: if the run is training, it has reached the copied checkpoint
            new_id = _write_journal(source, staging, final_dir, target.update)
            if (source / "config.json").is_file():
                shutil.copyfile(source / "config.json", staging / "config.json")
            final_dir = _publish(staging, final_dir, generated=run_dir is None)
    except OSError as error:
        raise RunFolderError(f"The new run {final_dir} cannot be created: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    command, command_notes = _resume_command(history, final_dir)
    return RollbackResult(
        run_dir=final_dir,
        run_id=new_id,
        checkpoint=CheckpointFolder(final_dir / "checkpoints", writing=False).checkpoints()[-1],
        source=source,
        command=command,
        notes=[*notes, *command_notes],
    )


def _require_empty(run_dir: Path) -> Path:
    if run_dir.is_symlink() or (run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir()))):
        raise RunFolderError(
            f"{str(run_dir)!r} exists and is not empty.",
            why="A rollback creates a new run; it never writes into an existing one.",
            fix="Name a folder that does not exist, or omit --run-dir.",
        )
    return run_dir


def _default_run_dir(source: Path) -> Path:
    """Return a path next to the old run, with its name and the current time."""
    resolved = source.resolve()
    parent = resolved.parent if source.name in ("", ".", "..") else source.parent
    return parent / f"{_TIMESTAMP_SUFFIX.sub('', resolved.name)}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


def _publish(staging: Path, final_dir: Path, *, generated: bool) -> Path:
    """Rename the complete folder to its final name; if a generated name exists meanwhile, use the next free name."""
    for path in numbered_names(final_dir) if generated else [final_dir]:
        try:
            path.mkdir(exist_ok=not generated)  # reserves the name
        except FileExistsError:
            continue
        staging.rename(path)  # replaces an empty folder atomically; fails if it is no longer empty
        sync(path.parent)
        return path
    raise AssertionError("numbered_names is infinite")


def _copy_checkpoints(source: Path, history: History, to: str, staging: Path) -> tuple[Checkpoint, list[str]]:
    """Copy the checkpoints that the new run needs; retry if the old run removed one of them meanwhile."""
    metric, mode = monitored_metric(history.facts)
    folder = CheckpointFolder(source / "checkpoints", metric=metric, mode=mode, writing=False)
    for attempt in range(1, _MAX_COPY_ATTEMPTS + 1):
        target = _find_checkpoint(folder, history, to)
        try:
            _copy_checkpoint(target, staging / "checkpoints")
            return target, _copy_best(folder, history, target, staging / "checkpoints")
        except (OSError, CheckpointError) as error:
            shutil.rmtree(staging / "checkpoints", ignore_errors=True)
            removed = isinstance(error, FileNotFoundError) or not target.path.exists()
            if attempt == _MAX_COPY_ATTEMPTS or not removed:
                raise
    raise AssertionError("the last attempt returns or raises")


def _find_checkpoint(folder: CheckpointFolder, history: History, to: str) -> Checkpoint:
    available = {checkpoint.update: checkpoint for checkpoint in folder.checkpoints()}
    if not available:
        raise CheckpointError(
            "The run has no complete checkpoint.", fix=" ".join(folder.problems()) or "Choose another run."
        )
    if to == "last":
        return available[max(available)]
    if to == "best":
        return _best_checkpoint(folder, history, available)
    if not (to.isascii() and to.isdigit() and len(to) < 20):
        raise InvalidConfig(f"--to is {to!r}.", fix="Pass best, last, or the number of an update.")
    if int(to) not in available:
        nearest = min(available, key=lambda update: abs(update - int(to)))
        raise CheckpointError(
            f"There is no complete checkpoint of update {int(to)}.",
            why=f"There are checkpoints of updates {', '.join(map(str, sorted(available)))}.",
            fix=f"The nearest is --to {nearest}.",
        )
    return available[int(to)]


def _best_checkpoint(folder: CheckpointFolder, history: History, available: dict[int, Checkpoint]) -> Checkpoint:
    """Return the checkpoint of the best evaluation; if it is missing, raise an error, even if others exist."""
    metric, mode = monitored_metric(history.facts)
    points = rank_points(history, metric, mode)
    if not points:
        raise CheckpointError(
            f"The best checkpoint is unknown: {metric!r} was never evaluated, or never finite.",
            fix=f"Choose an update: {', '.join(map(str, sorted(available)))}.",
        )
    if points[0].update in available:
        return available[points[0].update]
    remaining = folder.best()
    raise CheckpointError(
        f"The best checkpoint, of update {points[0].update} ({metric} {points[0].value:.6g}), is missing.",
        why="It was removed, is damaged, or was never saved.",
        fix=f"The best available checkpoint is --to {remaining.update} ({metric} {remaining.metrics[metric]:.6g})."
        if remaining
        else f"Choose an update: {', '.join(map(str, sorted(available)))}.",
    )


def _copy_best(folder: CheckpointFolder, history: History, target: Checkpoint, into: Path) -> list[str]:
    """Copy the best checkpoint before the target, for the final weights; return a note if it is missing."""
    metric, mode = monitored_metric(history.facts)
    ranked_points = rank_points(history, metric, mode)
    best_update = next((point.update for point in ranked_points if point.update <= target.update), target.update)
    if best_update == target.update:
        return []
    best = next((checkpoint for checkpoint in folder.checkpoints() if checkpoint.update == best_update), None)
    if best is None:
        note = (
            f"The best earlier checkpoint, of update {best_update}, is missing: if the new run does not "
            "improve on it, its final weights will differ from those of the old run."
        )
        return [note]
    _copy_checkpoint(best, into)
    return []


def _copy_checkpoint(checkpoint: Checkpoint, into: Path) -> None:
    """Copy one checkpoint, verify every byte of the copy, and flush it to the disk."""
    copy = into / checkpoint.path.name
    copy.mkdir(parents=True)
    for file in checkpoint.path.iterdir():
        if file.is_file() and not file.is_symlink():
            shutil.copyfile(file, copy / file.name)
    try:
        verify(copy)
    except CheckpointError as error:
        raise CheckpointError(
            f"{checkpoint.path} cannot be used: its content differs from what was saved.", why=error.what, fix=error.fix
        ) from error
    for item in (*copy.iterdir(), copy, into):
        sync(item)


def _write_journal(source: Path, staging: Path, final_dir: Path, update: int) -> str:
    new_id = secrets.token_hex(16)
    note = rollback_note(source=source, run_id=read_run_id(source / JOURNAL_NAME) or "", update=update)
    fork_journal(source, staging, update=update, run_id=new_id, note=note, final_dir=final_dir)
    new_history = read_journal(staging)
    if new_history.last_update != update:
        raise RunFolderError(
            f"The journal of {source} ends at update {new_history.last_update}, "
            f"but its checkpoint is of update {update}.",
            why="The new run would have a gap in its history.",
            fix="Choose another checkpoint, with --to.",
        )
    sync(staging / JOURNAL_NAME)
    sync(staging)
    return new_id


def _resume_command(history: History, final_dir: Path) -> tuple[list[str], list[str]]:
    """Return the command that resumes the new run, derived from the command of the old run, and notes about it."""
    notes: list[str] = []
    recorded = history.facts.get("command")
    recipe = history.facts.get("recipe")
    if isinstance(recorded, list) and cast("list[Any]", recorded)[:2] == ["trueloop", "train"] and len(recorded) > 2:  # pyright: ignore[reportUnknownArgumentType]
        command = [str(word) for word in cast("list[Any]", recorded)]
    elif isinstance(recipe, str):
        command = ["trueloop", "train", recipe]
        notes.append("The journal does not record the settings of the command: add the settings of the old run.")
    else:
        return [], ["The run was started from Python: call the same Trainer with this run_dir to resume it."]
    for flag in ("--run-dir", "--checkpoint.mirror"):
        if flag in command:
            index = command.index(flag)
            del command[index : index + 2]
    command[3:3] = ["--run-dir", str(final_dir)]
    if recorded_setting(history.facts, "checkpoint.mirror"):
        command += ["--checkpoint.mirror", "none"]
        notes.append("The old run keeps its mirror; the new run has none unless you pass another one.")
    return command, notes
