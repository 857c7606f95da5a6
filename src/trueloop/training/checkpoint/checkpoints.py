"""The checkpoints of one run: at any time, each is either complete or absent.

    root/update-000000123/      manifest.py lists the files in it
         update-000000456/
         update-000000456-2/    a second save of that update; the first save is removed when this one is complete

A checkpoint is written into a hidden folder in the same root. Every file is synced to disk, the manifest last; then
the folder is renamed. The latest and the best checkpoint are determined from the manifests alone, so this information
cannot be out of date.
"""

from __future__ import annotations

import math
import re
import secrets
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.training.checkpoint.durable_files import damage_error, sync, unreadable, unwritable
from trueloop.training.checkpoint.manifest import (
    Checkpoint,
    NewerSchemaError,
    PackedState,
    WriteExtra,
    read_folder,
    read_manifest,
    write_folder,
)

if TYPE_CHECKING:  # a folder can be listed, ranked and cleaned up where torch is not installed
    from torch import Tensor

    from trueloop.training.checkpoint.state_tree import Json

__all__ = ["Checkpoint", "CheckpointFolder", "NewerSchemaError"]

FOLDER = re.compile(r"update-(\d{9,})(?:-(\d+))?")
_HIDDEN = re.compile(r"\.(saving|removing)-update-\d{9,}(-\d+)?-[0-9a-f]{8}")
_PART = re.compile(r"[A-Za-z0-9_]+")


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        root: the folder that holds the checkpoints.
        keep_last: number of newest checkpoints to keep; the newest one is kept even if this is 0.
        keep_best: number of checkpoints to keep that are best by ``metric``.
        metric: name of the metric that ranks the checkpoints.
        mode: whether lower or higher values are better.
        writing: create the folder, and remove what a killed save left in it. False = only read, even during a run.

    Raises:
        InvalidConfig: a negative number to keep, or an unknown mode.
        CheckpointError: the folder cannot be created.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep_last: int = 2,
        keep_best: int = 1,
        metric: str = "val/loss",
        mode: Literal["min", "max"] = "min",
        writing: bool = True,
    ) -> None:
        if min(keep_last, keep_best) < 0 or mode not in ("min", "max"):
            raise InvalidConfig(
                f"Checkpoints cannot be kept by keep_last = {keep_last}, keep_best = {keep_best}, mode = {mode!r}.",
                fix="Keep 0 or more of each; mode is 'min' or 'max'.",
            )
        self._root = Path(root)
        self._keep_last, self._keep_best = keep_last, keep_best
        self._metric, self._sign = metric, 1 if mode == "min" else -1
        self._failed: dict[str, str] = {}
        if writing:
            self._prepare()

    def save(self, state: Mapping[str, object], *, update: int, epoch: int, metrics: Mapping[str, float]) -> Checkpoint:
        """Write a checkpoint and sync it to disk, then remove the checkpoints that need not be kept.

        Args:
            state: maps each part's name, which is also the name of its tensor file, to a tree for `state_tree.pack`.
            update: number of updates done; a checkpoint of the same update is replaced.
            epoch: current epoch, for information.
            metrics: metrics of the latest evaluation; a checkpoint with NaN is never the best.

        Raises:
            CheckpointError: the state holds something that is not data, or writing fails; older checkpoints are
                untouched and the partial one is removed.

        Cost: blocks until everything is on disk.
        """
        return self.write(pack_state(state), update=update, epoch=epoch, metrics=metrics)

    def write(
        self,
        parts: PackedState,
        *,
        update: int,
        epoch: int,
        metrics: Mapping[str, float],
        write_extra: WriteExtra | None = None,
    ) -> Checkpoint:
        """Write a checkpoint like `save`, from the result of `pack_state`; callable on any thread, one at a time.

        ``write_extra`` writes further files of the checkpoint.

        Raises:
            CheckpointError: writing fails; older checkpoints are untouched and the partial one is removed.
        """
        path = self._free_path(update)
        numbers = {name: float(value) for name, value in metrics.items()}
        checkpoint = Checkpoint(path=path, update=update, epoch=epoch, metrics=numbers)
        self._create(path, lambda hidden: write_folder(hidden, parts, checkpoint, write_extra))
        self._retain(checkpoint)
        return checkpoint

    def import_checkpoint(self, update: int, fill: Callable[[Path], None]) -> tuple[Checkpoint, dict[str, Any]]:
        """Import a checkpoint from elsewhere; it gets its final name after all its bytes have been checked.

        Args:
            update: number of updates in the checkpoint's name.
            fill: function that writes the checkpoint's files into the empty folder that it is called with.

        Returns:
            The local checkpoint and its state.

        Raises:
            CheckpointError: the checkpoint is incomplete, or writing fails; its files are removed.
            NewerSchemaError: a newer trueloop wrote it.
        """
        path, states = self._free_path(update), list[dict[str, Any]]()

        def fill_and_check(hidden: Path) -> None:
            fill(hidden)
            states.append(read_folder(hidden))
            _read_checkpoint_of(hidden, update)
            for item in (*hidden.iterdir(), hidden):
                sync(item)

        self._create(path, fill_and_check)
        return _read_checkpoint_of(path, update), states[0]

    def checkpoints(self) -> list[Checkpoint]:
        """Return the complete checkpoints, oldest first: manifest intact, every file present and of the right size.

        Raises:
            NewerSchemaError: a newer trueloop wrote one of them.
        """
        return _one_per_update(self._scan()[0])

    def problems(self) -> list[str]:
        """Return one sentence for each skipped folder: incomplete, tampered with, or not a checkpoint."""
        return self._scan()[1]

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint that has not failed to load; None if there is none."""
        return next(reversed(self.checkpoints()), None)

    def best(self) -> Checkpoint | None:
        """Return the best complete checkpoint, the older one in a tie; None if no checkpoint has the metric."""
        return next(iter(self._sort_by_metric(self.checkpoints())), None)

    def leftovers(self) -> list[Path]:
        """Return the hidden folders of unfinished saves and removals; the next start removes them.

        Raises:
            OSError: the folder cannot be listed.
        """
        return [entry for entry in self._root.iterdir() if _HIDDEN.fullmatch(entry.name)]

    @contextmanager
    def visibility_token(self) -> Generator[Path]:
        """Create a temporary empty folder with a unique name, so that other processes can check that they see it.

        Raises:
            CheckpointError: the folder cannot be created or removed.
        """
        path = self._hidden_path("saving", self.path_of(0))
        try:
            path.mkdir()
            yield path.resolve()
            path.rmdir()
        except OSError as error:
            raise unwritable(path, error) from error

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Load a checkpoint after checking all its bytes; nothing in it is ever executed.

        Raises:
            CheckpointError: the checkpoint is damaged or unreadable; it is skipped from now on, and in `problems`.
            NewerSchemaError: a newer trueloop wrote it.

        Cost: one read of all files; tensors arrive on the CPU.
        """
        try:
            return read_folder(checkpoint.path)
        except NewerSchemaError:
            raise
        except CheckpointError as error:
            self._failed[checkpoint.path.name] = error.what
            raise
        except OSError as error:
            failure = unreadable(checkpoint.path, error)
            self._failed[checkpoint.path.name] = failure.what
            raise failure from error

    def load_latest(self) -> tuple[Checkpoint, dict[str, Any]] | None:
        """Load the newest undamaged checkpoint; `problems` then lists the skipped ones.

        Returns:
            The checkpoint and its state, or None if there is none.
        """
        while (checkpoint := self.latest()) is not None:
            try:
                return checkpoint, self.load(checkpoint)
            except NewerSchemaError:
                raise
            except CheckpointError:
                continue  # load() has recorded the damage: latest() now returns the previous checkpoint
        return None

    def _create(self, path: Path, fill: Callable[[Path], None]) -> None:
        """Create a checkpoint: fill a hidden folder, then rename it."""
        hidden = self._hidden_path("saving", path)
        try:
            hidden.mkdir(parents=True)
            fill(hidden)
            hidden.rename(path)
            sync(self._root)
        except OSError as error:
            raise unwritable(path, error) from error
        finally:
            shutil.rmtree(hidden, ignore_errors=True)  # does nothing if the folder has been renamed
        self._failed.pop(path.name, None)

    def _prepare(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            leftovers = self.leftovers()
        except OSError as error:
            raise unwritable(self._root, error) from error
        for entry in leftovers:
            shutil.rmtree(entry, ignore_errors=True)  # a folder that cannot be removed is tried again at the next start

    def _scan(self) -> tuple[list[Checkpoint], list[str]]:
        """Return all complete checkpoints, sorted by update and save, and one sentence on each other folder."""
        complete: list[Checkpoint] = []
        problems: list[str] = []
        for path in self._folders():
            try:
                if path.name in self._failed:
                    problems.append(self._failed[path.name])
                else:
                    complete.append(_read_checkpoint_of(path, _update_and_save(path)[0]))
            except NewerSchemaError:
                raise
            except CheckpointError as error:
                problems.append(error.what)
            except OSError as error:
                problems.append(unreadable(path, error).what)
        return complete, problems

    def _folders(self) -> list[Path]:
        """Return every folder named like a checkpoint, sorted by update and save."""
        try:
            return sorted(
                (entry for entry in self._root.iterdir() if FOLDER.fullmatch(entry.name)), key=_update_and_save
            )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self._root, error) from error

    def _free_path(self, update: int) -> Path:
        saves = [save for saved, save in map(_update_and_save, self._folders()) if saved == update]
        path = self.path_of(update)
        return path.with_name(f"{path.name}-{max(saves) + 1}") if saves else path

    def path_of(self, update: int) -> Path:
        """Return the path of the first save of an update."""
        return self._root / f"update-{update:09d}"

    def _hidden_path(self, purpose: Literal["saving", "removing"], path: Path) -> Path:
        return self._root / f".{purpose}-{path.name}-{secrets.token_hex(4)}"

    def _sort_by_metric(self, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        """Sort checkpoints best first; leave out those whose metric is missing or NaN."""
        metric = self._metric
        ranked = [each for each in checkpoints if not math.isnan(each.metrics.get(metric, math.nan))]
        return sorted(ranked, key=lambda checkpoint: self._sign * checkpoint.metrics[metric])

    def _retain(self, saved: Checkpoint) -> None:
        """Remove the complete checkpoints that need not be kept; damaged ones stay as evidence."""
        every_save, _ = self._scan()
        complete = _one_per_update(every_save)
        newest = complete[-max(1, self._keep_last) :]
        best = self._sort_by_metric(complete)[: self._keep_best]
        to_keep = {checkpoint.path for checkpoint in (saved, *newest, *best)}
        for checkpoint in every_save:
            if checkpoint.path not in to_keep:
                self.remove(checkpoint)

    def remove(self, checkpoint: Checkpoint) -> None:
        """Remove one checkpoint. It is renamed first, so that a crash leaves a hidden folder, not a partial checkpoint.

        Raises:
            CheckpointError: the checkpoint cannot be renamed; it is still complete.
        """
        path = checkpoint.path
        hidden = self._hidden_path("removing", path)
        try:
            path.rename(hidden)
            sync(self._root)
        except OSError as error:
            raise CheckpointError(
                f"The old checkpoint {path} could not be removed: {error.strerror or error}.",
                why="The new checkpoint is saved, but old ones would fill the disk.",
                fix=f"Allow writing to {self._root}.",
            ) from error
        shutil.rmtree(hidden, ignore_errors=True)  # a folder that cannot be removed is tried again at the next start


def pack_state(state: Mapping[str, object], *, copy: PackedState | None = None) -> PackedState:
    """Convert each part of a state to JSON and tensors; see `state_tree.pack`.

    Args:
        state: maps each part's name to its tree.
        copy: earlier result whose memory receives a copy of the state ({} if there is none), so that the state may
            change during the save; None = share memory with the state.

    Raises:
        CheckpointError: the state holds something that is not data.
    """
    from trueloop.training.checkpoint.state_tree import pack

    parts: dict[str, tuple[Json, dict[str, Tensor]]] = {}
    for name, tree in state.items():
        _check_part(name)
        buffers = None if copy is None else (copy[name][1] if name in copy else {})
        parts[name] = pack(tree, at=name, copy=buffers)
    return parts


def _read_checkpoint_of(path: Path, update: int) -> Checkpoint:
    """Read a manifest and check that it belongs to this update."""
    checkpoint, _ = read_manifest(path)
    if checkpoint.update != update:
        raise damage_error(path, f"it is the checkpoint of update {checkpoint.update} under another name")
    return checkpoint


def _update_and_save(path: Path) -> tuple[int, int]:
    """Return the update in a folder's name, and the number of the save of that update, from 1."""
    match = cast("re.Match[str]", FOLDER.fullmatch(path.name))
    return int(match[1]), int(match[2] or 1)


def _one_per_update(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Return the last save of each update, in order."""
    return list({checkpoint.update: checkpoint for checkpoint in checkpoints}.values())


def _check_part(part: str) -> None:
    if not _PART.fullmatch(part):
        raise CheckpointError(
            f"A part of the state is called {part!r}, which is not a valid file name.",
            fix="Use letters, digits and underscores.",
        )
