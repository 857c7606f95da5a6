"""Saves a run beside its training: the loop is held up for a copy of the state, and the disk works meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any, cast

from torch import Tensor

from trueloop.core.protocols import CheckpointSaved, Notice
from trueloop.training.checkpoint.checkpoints import Checkpoint, CheckpointFolder, pack_state
from trueloop.training.checkpoint.manifest import PackedState, WriteExtra
from trueloop.training.checkpoint.mirror import LoadedCheckpoint, Mirror, MirrorError
from trueloop.training.memory.host_memory import available_bytes


class Saver:
    """Writes checkpoints on a thread of its own, one at a time, and mirrors them on another.

    A save waits for the one before, never for an upload. An error in writing is raised on the training thread, by the
    next `save`, `wait` or `close`; a mirror that fails is a note, and later saves upload what is missing.

    Args:
        folder: where they go; nobody else saves there meanwhile.
        blocking: write on the training thread instead.
        mirror: a second place for whole checkpoints.
        available: host memory that can still be taken, in bytes; None = unknown.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        *,
        blocking: bool = False,
        mirror: Mirror | None = None,
        available: Callable[[], int | None] = available_bytes,
    ) -> None:
        self._folder, self._blocking, self._mirror, self._available = folder, blocking, mirror, available
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._uploader = ThreadPoolExecutor(1, "mirror")
        self._written: Future[None] | None = None
        self._copy: PackedState = {}
        self._uploads: list[Future[None]] = []
        self._news: deque[CheckpointSaved | Notice] = deque()
        self._problems: list[str] = []
        self._update = 0
        self._said_blocking = self._mirror_down = False

    def save(
        self,
        state: Mapping[str, object],
        *,
        update: int,
        epoch: int,
        metrics: Mapping[str, float],
        write_extra: WriteExtra | None = None,
    ) -> None:
        """Save the state as it is now; it may change as soon as this returns.

        Args:
            state: part name to tree, as `CheckpointFolder.save` takes it.
            update: updates done so far.
            epoch: where the loop is.
            metrics: the latest evaluation.
            write_extra: writes what else belongs to the checkpoint; it is whole before this returns then.

        Raises:
            CheckpointError: the save before failed, or this state holds something that is not data.

        Cost: the rest of the save before, and one copy of the state into host memory, which is kept for the next save.
            Where less than twice the state's bytes were free without it, nothing is copied or kept: the state is
            written before this returns.
        """
        started = perf_counter()
        self._finish_writing()
        self._update = update
        blocking = self._blocking or write_extra is not None or not self._copy_fits(state)
        parts = pack_state(state, copy=None if blocking else self._copy)
        self._copy = {} if blocking else parts
        about = {"update": update, "epoch": epoch, "metrics": dict(metrics), "beside": write_extra}
        if blocking:
            self._write(parts, about, started, None)
        else:
            self._written = self._writer.submit(self._write, parts, about, started, perf_counter() - started)

    def drain_events(self) -> list[CheckpointSaved | Notice]:
        """Return what has happened since the last call, oldest first: checkpoints that are whole, and notes."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def wait(self) -> None:
        """Return when everything saved is whole on disk, and in the mirror unless that is down.

        Raises:
            CheckpointError: the last save failed.
        """
        self._finish_writing()
        uploads, self._uploads = self._uploads, []
        for upload in uploads:
            upload.result()

    def close(self) -> None:
        """Wait, then end the threads; nothing can be saved afterwards. Closing twice is harmless.

        Raises:
            CheckpointError: the last save failed.
        """
        try:
            self.wait()
            if self._mirror_down:
                self._add_notice("mirror_behind", "The mirror was not reached to the end: it lacks the newest checkpoints.")
                self._mirror_down = False
        finally:
            self._writer.shutdown()
            self._uploader.shutdown()

    def load_latest(self) -> LoadedCheckpoint | None:
        """Read the newest whole checkpoint: from the mirror where that holds a later one than this machine.

        Raises:
            MirrorError: there is none here, and the mirror does not say whether it has one.
            NewerSchemaError: a newer trueloop wrote it.
        """
        found, newer = self._folder.load_latest(), None
        self._problems = self._folder.problems()
        if self._mirror:
            try:
                newer, problems = self._mirror.load_newer(found[0].update if found else -1, self._folder)
                self._problems += problems
            except MirrorError as error:
                if found is None:
                    raise  # starting from nothing could throw away the run that lies there
                self._problems.append(error.what)
        return newer or found

    def problems(self) -> list[str]:
        """One sentence for each checkpoint that the last `load_latest` passed over."""
        return self._problems

    def _finish_writing(self) -> None:
        if self._written:
            failure = self._written.exception()  # a Ctrl-C that ends this wait leaves the error for the next one
            self._written = None
            if failure:
                raise failure

    def _copy_fits(self, state: Mapping[str, object]) -> bool:
        size, available = _tree_bytes(state), self._available()
        if available is None or available + _tree_bytes(self._copy) >= 2 * size:
            return True
        if not self._said_blocking:
            self._said_blocking = True
            message = (
                f"The state has {size / 2**20:.0f} MiB and only {available / 2**20:.0f} MiB of memory are free: "
                "training waits for each save, because a copy to save from might not fit."
            )
            self._add_notice("save_blocking", message)
        return False

    def _write(self, parts: PackedState, about: Mapping[str, Any], started: float, blocked_s: float | None) -> None:
        saved = self._folder.write(parts, **about)
        seconds = perf_counter() - started
        self._news.append(
            CheckpointSaved(
                update=saved.update,
                epoch=saved.epoch,
                path=str(saved.path),
                metrics=saved.metrics,
                seconds=seconds,
                blocked_s=seconds if blocked_s is None else blocked_s,
            )
        )
        if self._mirror:
            # One that has not begun is not needed, the next one does its work; one that has ended may hold an error.
            self._uploads = [u for u in self._uploads if not (u.cancel() or (u.done() and u.result() is None))]
            kept = self._folder.checkpoints()
            self._uploads.append(self._uploader.submit(self._upload, self._mirror, kept))

    def _upload(self, mirror: Mirror, kept: Sequence[Checkpoint]) -> None:
        try:
            mirror.sync(kept)
        except MirrorError as error:
            if not self._mirror_down:
                self._add_notice("mirror_down", f"{error.what}. Training goes on; every save tries again.")
            self._mirror_down = True
        else:
            if self._mirror_down:
                self._add_notice("mirror_up", f"The mirror {mirror.url} is reached again and holds every checkpoint.")
            self._mirror_down = False

    def _add_notice(self, kind: str, message: str) -> None:
        self._news.append(Notice(update=self._update, kind=kind, message=message, details={}))


def _tree_bytes(tree: object) -> int:
    """Return the size of all tensors in a tree; one that is there twice counts twice."""
    if isinstance(tree, Tensor):
        return tree.nbytes
    if isinstance(tree, Mapping):
        return sum(map(_tree_bytes, cast("Mapping[Any, object]", tree).values()))
    if isinstance(tree, list | tuple):
        return sum(map(_tree_bytes, cast("Sequence[object]", tree)))
    return 0
