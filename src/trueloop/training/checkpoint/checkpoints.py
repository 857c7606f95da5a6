"""All checkpoints of one run: each whole or absent, at every instant.

    root/update-000000123/      see manifest.py for what is in it
         update-000000456/
         update-000000456-2/    a second save of that update; the first one goes when this one is whole

A checkpoint is written into a hidden folder beside, every file synced, the manifest last; then the folder is renamed.
Which one is the latest or the best is read from the manifests and kept nowhere else, so it cannot be out of date.
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
from trueloop.training.checkpoint.durable_files import damaged, sync, unreadable, unwritable
from trueloop.training.checkpoint.manifest import (
    Checkpoint,
    NewerSchemaError,
    PackedState,
    WriteExtra,
    read_folder,
    read_manifest,
    write_folder,
)

if TYPE_CHECKING:  # what lies in a folder can be listed, ranked and removed where torch is not installed
    from torch import Tensor

    from trueloop.training.checkpoint.state_tree import Json

__all__ = ["Checkpoint", "CheckpointFolder", "NewerSchemaError"]

FOLDER = re.compile(r"update-(\d{9,})(?:-(\d+))?")
_HIDDEN = re.compile(r"\.(saving|removing)-update-\d{9,}(-\d+)?-[0-9a-f]{8}")
_PART = re.compile(r"[A-Za-z0-9_]+")


class CheckpointFolder:
    """All checkpoints of one run.

    Args:
        root: the folder that holds them.
        keep_last: newest ones kept; the very newest always is.
        keep_best: best ones kept, by the metric.
        metric: its name in a checkpoint's metrics.
        mode: whether less or more is better.
        writing: make the folder, and sweep what a killed save left in it. False only looks, also at a live run.

    Raises:
        InvalidConfig: a negative number to keep, or an unknown mode.
        CheckpointError: the folder cannot be made.
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
                f"keep_last = {keep_last}, keep_best = {keep_best}, mode = {mode!r}",
                fix="Keep 0 or more of each; mode is 'min' or 'max'.",
            )
        self._root = Path(root)
        self._keep_last, self._keep_best = keep_last, keep_best
        self._metric, self._sign = metric, 1 if mode == "min" else -1
        self._failed: dict[str, str] = {}
        if writing:
            self._prepare()

    def save(self, state: Mapping[str, object], *, update: int, epoch: int, metrics: Mapping[str, float]) -> Checkpoint:
        """Write a checkpoint through to the disk, then remove those no longer kept.

        Args:
            state: part name to tree, as `state.pack` takes it; each part's tensors go to a file of that name.
            update: updates done so far; a checkpoint of the same update is replaced.
            epoch: where the loop is; kept for the reader.
            metrics: the latest evaluation; NaN is never best.

        Raises:
            CheckpointError: the state holds something that is not data, or the disk refuses; older checkpoints are
                untouched and the partial one is gone.

        Cost: blocks until the disk has it all.
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
        """Do as `save` does, with a state that is `pack_state` already; on any thread, one at a time.

        ``write_extra`` writes what else belongs to it.

        Raises:
            CheckpointError: the disk refuses; older checkpoints are untouched and the partial one is gone.
        """
        path = self._free_path(update)
        numbers = {name: float(value) for name, value in metrics.items()}
        checkpoint = Checkpoint(path=path, update=update, epoch=epoch, metrics=numbers)
        self._make(path, lambda hidden: write_folder(hidden, parts, checkpoint, write_extra))
        self._retain(checkpoint)
        return checkpoint

    def adopt(self, update: int, fill: Callable[[Path], None]) -> tuple[Checkpoint, dict[str, Any]]:
        """Take over a checkpoint from elsewhere; it gets its name here after every byte of it was checked.

        Args:
            update: that it is said to be of.
            fill: puts its files into the folder it is given, which exists and is empty.

        Returns:
            The checkpoint as it now lies here, and its state.

        Raises:
            CheckpointError: it is not whole, or the disk refuses; nothing of it is left.
            NewerSchemaError: a newer trueloop wrote it.
        """
        path, states = self._free_path(update), list[dict[str, Any]]()

        def checked(hidden: Path) -> None:
            fill(hidden)
            states.append(read_folder(hidden))
            _read_checkpoint_of(hidden, update)
            for item in (*hidden.iterdir(), hidden):
                sync(item)

        self._make(path, checked)
        return _read_checkpoint_of(path, update), states[0]

    def checkpoints(self) -> list[Checkpoint]:
        """List the whole ones, oldest first: manifest sound, every file there and of the right size.

        Raises:
            NewerSchemaError: a newer trueloop wrote one of them.
        """
        return _one_per_update(self._scan()[0])

    def problems(self) -> list[str]:
        """One sentence for each folder that is passed over: torn, tampered with, or not a checkpoint."""
        return self._scan()[1]

    def latest(self) -> Checkpoint | None:
        """Return the newest whole one, of those that have not failed to load."""
        return next(reversed(self.checkpoints()), None)

    def best(self) -> Checkpoint | None:
        """Return the best whole one by the metric, the older one of equals; None where none has it."""
        return next(iter(self._ranked(self.checkpoints())), None)

    def leftovers(self) -> list[Path]:
        """List what killed saves and removals left, or running ones are at; swept at the next start.

        Raises:
            OSError: as the system says.
        """
        return [entry for entry in self._root.iterdir() if _HIDDEN.fullmatch(entry.name)]

    @contextmanager
    def visibility_token(self) -> Generator[Path]:
        """Make an empty folder with a name of its own for a moment, so that others can say whether they see it.

        Raises:
            CheckpointError: the disk refuses.
        """
        path = self._hidden("saving", self.path_of(0))
        try:
            path.mkdir()
            yield path.resolve()
            path.rmdir()
        except OSError as error:
            raise unwritable(path, error) from error

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Read a checkpoint back, every byte of it checked; nothing in it is ever executed.

        Raises:
            CheckpointError: it is damaged or unreadable; from now on it is passed over and among the `problems`.
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
        """Read the newest one that is whole to the last bit; `problems` then names those that were passed over.

        Returns:
            None where there is none.
        """
        while (checkpoint := self.latest()) is not None:
            try:
                return checkpoint, self.load(checkpoint)
            except NewerSchemaError:
                raise
            except CheckpointError:
                continue  # load() has noted it: latest() now gives the one before
        return None

    def _make(self, path: Path, fill: Callable[[Path], None]) -> None:
        """Fill a hidden folder beside, then give it its name."""
        hidden = self._hidden("saving", path)
        try:
            hidden.mkdir(parents=True)
            fill(hidden)
            hidden.rename(path)
            sync(self._root)
        except OSError as error:
            raise unwritable(path, error) from error
        finally:
            shutil.rmtree(hidden, ignore_errors=True)  # gone already when all went well
        self._failed.pop(path.name, None)

    def _prepare(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            leftovers = self.leftovers()
        except OSError as error:
            raise unwritable(self._root, error) from error
        for entry in leftovers:
            shutil.rmtree(entry, ignore_errors=True)  # what cannot be removed now is tried again next time

    def _scan(self) -> tuple[list[Checkpoint], list[str]]:
        """Return all whole checkpoints by update and save, and a sentence on each folder that is none."""
        whole: list[Checkpoint] = []
        problems: list[str] = []
        for path in self._folders():
            try:
                if path.name in self._failed:
                    problems.append(self._failed[path.name])
                else:
                    whole.append(_read_checkpoint_of(path, _update_and_save(path)[0]))
            except NewerSchemaError:
                raise
            except CheckpointError as error:
                problems.append(error.what)
            except OSError as error:
                problems.append(unreadable(path, error).what)
        return whole, problems

    def _folders(self) -> list[Path]:
        """Return everything named like a checkpoint, by update and save."""
        try:
            return sorted((entry for entry in self._root.iterdir() if FOLDER.fullmatch(entry.name)), key=_update_and_save)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self._root, error) from error

    def _free_path(self, update: int) -> Path:
        saves = [save for other, save in map(_update_and_save, self._folders()) if other == update]
        path = self.path_of(update)
        return path.with_name(f"{path.name}-{max(saves) + 1}") if saves else path

    def path_of(self, update: int) -> Path:
        """Return where the checkpoint of an update lies, if it was saved once."""
        return self._root / f"update-{update:09d}"

    def _hidden(self, purpose: Literal["saving", "removing"], path: Path) -> Path:
        return self._root / f".{purpose}-{path.name}-{secrets.token_hex(4)}"

    def _ranked(self, whole: list[Checkpoint]) -> list[Checkpoint]:
        """Sort best first; those without the metric, or with NaN, are left out."""
        metric = self._metric
        ranked = [checkpoint for checkpoint in whole if not math.isnan(checkpoint.metrics.get(metric, math.nan))]
        return sorted(ranked, key=lambda checkpoint: self._sign * checkpoint.metrics[metric])

    def _retain(self, saved: Checkpoint) -> None:
        """Remove whole checkpoints beyond those to keep; damaged ones are evidence and stay."""
        everything, _ = self._scan()
        whole = _one_per_update(everything)
        newest = whole[-max(1, self._keep_last) :]
        kept = {checkpoint.path for checkpoint in (saved, *newest, *self._ranked(whole)[: self._keep_best])}
        for checkpoint in everything:
            if checkpoint.path not in kept:
                self.remove(checkpoint)

    def remove(self, checkpoint: Checkpoint) -> None:
        """Remove one; renamed out of sight first, so that a crash leaves no torn checkpoint but a leftover to sweep.

        Raises:
            CheckpointError: the disk refuses; it is still there, and whole.
        """
        path = checkpoint.path
        hidden = self._hidden("removing", path)
        try:
            path.rename(hidden)
            sync(self._root)
        except OSError as error:
            raise CheckpointError(
                f"The old checkpoint {path} could not be removed: {error.strerror or error}.",
                why="The new one is saved, but the disk would fill up.",
                fix=f"Allow writing to {self._root}.",
            ) from error
        shutil.rmtree(hidden, ignore_errors=True)  # what cannot be removed now is swept at the next start


def pack_state(state: Mapping[str, object], *, copy: PackedState | None = None) -> PackedState:
    """Make each part of a state ready to be written; see `state.pack`.

    Args:
        state: part name to tree.
        copy: share no memory with the state, so that it may change meanwhile; an earlier copy is overwritten.

    Raises:
        CheckpointError: the state holds something that is not data.
    """
    from trueloop.training.checkpoint.state_tree import pack

    parts: dict[str, tuple[Json, dict[str, Tensor]]] = {}
    for name, tree in state.items():
        _check_part(name)
        earlier = None if copy is None else copy[name][1] if name in copy else {}
        parts[name] = pack(tree, at=name, copy=earlier)
    return parts


def _read_checkpoint_of(path: Path, update: int) -> Checkpoint:
    """Read a manifest, which must be that of a certain update."""
    checkpoint, _ = read_manifest(path)
    if checkpoint.update != update:
        raise damaged(path, f"it is the checkpoint of update {checkpoint.update} under another name")
    return checkpoint


def _update_and_save(path: Path) -> tuple[int, int]:
    """Return the update, and which save of it this is."""
    match = cast("re.Match[str]", FOLDER.fullmatch(path.name))
    return int(match[1]), int(match[2] or 1)


def _one_per_update(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    """Keep the last save of each update, in order."""
    return list({checkpoint.update: checkpoint for checkpoint in checkpoints}.values())


def _check_part(part: str) -> None:
    if not _PART.fullmatch(part):
        raise CheckpointError(
            f"A part of the state is called {part!r}, which cannot be a file name.",
            fix="Use letters, digits and underscores.",
        )
