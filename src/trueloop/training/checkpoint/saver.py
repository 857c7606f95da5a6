"""Save a run in the background: training only waits until the state is copied; another thread writes the copy."""

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
    """Writes checkpoints on a thread of its own, one at a time, and mirrors them on another thread.

    A save waits for the previous save, never for an upload. A write error is raised on the training thread, by the next
    `save`, `wait` or `close`; a mirror error is only reported, and later saves upload what is missing.

    Args:
        folder: checkpoint folder; nothing else may save there meanwhile.
        blocking: whether to write on the training thread.
        mirror: second location for complete checkpoints.
        available: function that returns the available CPU memory in bytes; None = unknown.
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
        self._pending_write: Future[None] | None = None
        self._copy: PackedState = {}
        self._uploads: list[Future[None]] = []
        self._events: deque[CheckpointSaved | Notice] = deque()
        self._problems: list[str] = []
        self._update = 0
        self._reported_blocking = self._mirror_down = False

    def save(
        self,
        state: Mapping[str, object],
        *,
        update: int,
        epoch: int,
        metrics: Mapping[str, float],
        write_extra: WriteExtra | None = None,
    ) -> None:
        """Save the current state; it may change as soon as this returns.

        Args:
            state: maps each part's name to its tree, as for `CheckpointFolder.save`.
            update: number of updates done.
            epoch: number of epochs completed.
            metrics: metrics of the latest evaluation.
            write_extra: function that writes further files; the checkpoint is then complete when this returns.

        Raises:
            CheckpointError: the previous save failed, or this state holds something that is not data.

        Cost: waits for the end of the previous save, then copies the state into CPU memory that every save uses again.
            If less than twice the state's size would be free without the copy, the state is not copied, but written
            before this returns.
        """
        started = perf_counter()
        self._finish_writing()
        self._update = update
        blocking = self._blocking or write_extra is not None or not self._copy_fits(state)
        parts = pack_state(state, copy=None if blocking else self._copy)
        self._copy = {} if blocking else parts
        description = {"update": update, "epoch": epoch, "metrics": dict(metrics), "write_extra": write_extra}
        if blocking:
            self._write(parts, description, started, None)
        else:
            self._pending_write = self._writer.submit(
                self._write, parts, description, started, perf_counter() - started
            )

    def drain_events(self) -> list[CheckpointSaved | Notice]:
        """Return the events since the last call, oldest first: completed checkpoints and notices."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def wait(self) -> None:
        """Wait until every checkpoint is complete on disk, and in the mirror unless that cannot be reached.

        Raises:
            CheckpointError: the last save failed.
        """
        self._finish_writing()
        uploads, self._uploads = self._uploads, []
        for upload in uploads:
            upload.result()

    def close(self) -> None:
        """Call `wait`, then end the threads; afterwards nothing can be saved. Closing twice is harmless.

        Raises:
            CheckpointError: the last save failed.
        """
        try:
            self.wait()
            if self._mirror_down:
                self._add_notice("mirror_behind", "The mirror could not be reached: it lacks the newest checkpoints.")
                self._mirror_down = False
        finally:
            self._writer.shutdown()
            self._uploader.shutdown()

    def load_latest(self) -> LoadedCheckpoint | None:
        """Load the newest complete checkpoint, from the mirror if that has a later one than this machine.

        Raises:
            MirrorError: this machine has no checkpoint, and the mirror cannot be read.
            NewerSchemaError: a newer trueloop wrote it.
        """
        local, newer = self._folder.load_latest(), None
        self._problems = self._folder.problems()
        if self._mirror:
            try:
                newer, problems = self._mirror.load_newer(local[0].update if local else -1, self._folder)
                self._problems += problems
            except MirrorError as error:
                if local is None:
                    raise  # starting a new run could discard the run in the mirror
                self._problems.append(error.what)
        return newer or local

    def problems(self) -> list[str]:
        """Return one sentence for each checkpoint that the last `load_latest` skipped."""
        return self._problems

    def _finish_writing(self) -> None:
        if self._pending_write:
            failure = self._pending_write.exception()  # if Ctrl-C interrupts this, the next call raises the error
            self._pending_write = None
            if failure:
                raise failure

    def _copy_fits(self, state: Mapping[str, object]) -> bool:
        size, available = _tree_bytes(state), self._available()
        if available is None or available + _tree_bytes(self._copy) >= 2 * size:
            return True
        if not self._reported_blocking:
            self._reported_blocking = True
            message = (
                f"The state has {size / 2**20:.0f} MiB, but only {available / 2**20:.0f} MiB of memory are free: "
                "training waits for each save, because a copy might not fit in memory."
            )
            self._add_notice("save_blocking", message)
        return False

    def _write(
        self, parts: PackedState, description: Mapping[str, Any], started: float, blocked_s: float | None
    ) -> None:
        saved = self._folder.write(parts, **description)
        seconds = perf_counter() - started
        self._events.append(
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
            # Cancel uploads that have not started, as the new one includes them; a finished one may raise its error.
            self._uploads = [u for u in self._uploads if not (u.cancel() or (u.done() and u.result() is None))]
            checkpoints = self._folder.checkpoints()
            self._uploads.append(self._uploader.submit(self._upload, self._mirror, checkpoints))

    def _upload(self, mirror: Mirror, checkpoints: Sequence[Checkpoint]) -> None:
        try:
            mirror.sync(checkpoints)
        except MirrorError as error:
            if not self._mirror_down:
                self._add_notice("mirror_down", f"{error.what}. Training continues; every save tries again.")
            self._mirror_down = True
        else:
            if self._mirror_down:
                self._add_notice("mirror_up", f"The mirror {mirror.url} can be reached again and has every checkpoint.")
            self._mirror_down = False

    def _add_notice(self, kind: str, message: str) -> None:
        self._events.append(Notice(update=self._update, kind=kind, message=message, details={}))


def _tree_bytes(tree: object) -> int:
    """Return the size of all tensors in a tree; a tensor that occurs twice counts twice."""
    if isinstance(tree, Tensor):
        return tree.nbytes
    if isinstance(tree, Mapping):
        return sum(map(_tree_bytes, cast("Mapping[Any, object]", tree).values()))
    if isinstance(tree, list | tuple):
        return sum(map(_tree_bytes, cast("Sequence[object]", tree)))
    return 0
