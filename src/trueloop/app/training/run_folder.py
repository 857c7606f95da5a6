"""The run folder: what lies where, made without overwriting anything that is not a run's own.

RUN/journal.jsonl               what happened, line by line
RUN/config.json                 the settings
RUN/checkpoints/update-…/       the whole state, to resume from
RUN/final/model.safetensors     the trained weights
RUN/curves.png, report.html     to look at
RUN/.lock                       held by the process that trains here; a file left behind locks nothing
"""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from trueloop.core.errors import RunFolderError
from trueloop.core.fork_safety import handles_closed_after_fork
from trueloop.runs.run_id import read_run_id

# .lock is not among them: removed while it is held, it would let a second process lock a new one.
RUN_FILES = ("journal.jsonl", "config.json", "checkpoints", "final", "curves.png", "report.html")

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}

_OPEN_LOCKS = (
    handles_closed_after_fork()
)  # open lock files: a forked loader process that kept one would outlive the run with it


class RunFolder:
    """Paths inside one run's folder.

    Args:
        path: created where it does not exist.

    Raises:
        RunFolderError: it cannot be made or written.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable_error(error) from error
        if not os.access(self.path, os.W_OK):
            raise self._unusable_error(PermissionError("it is not writable"))

    @contextmanager
    def lock(self, *, fresh: bool = False) -> Generator[None]:
        """Keep every other process from training in this folder, for the length of a ``with`` block.

        The kernel holds the lock and lets go of it when the process ends, however it ends; so none is ever stale.
        Loader processes do not inherit it. On a network file system the server must support locks: NFS does, between
        machines too; where it is not supported, a warning says that nothing is locked.

        Args:
            fresh: remove what an earlier run left; nothing else in the folder is touched.

        Raises:
            RunFolderError: another process holds it, or it cannot be written.
        """
        try:
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise self._unusable_error(error) from error
        _OPEN_LOCKS.add(handle)
        try:
            self._acquire(handle)
            self._write_holder(handle)
            if fresh:
                self._remove_run_files()
            yield
        finally:
            if handle in _OPEN_LOCKS:  # else this is a forked child, which has let go of it
                _OPEN_LOCKS.discard(handle)
                os.close(handle)

    @property
    def journal(self) -> Path:
        """The journal's path."""
        return self.path / "journal.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """The trained weights."""
        return self.path / "final" / "model.safetensors"

    @property
    def curves(self) -> Path:
        """The picture of the curves."""
        return self.path / "curves.png"

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / "report.html"

    def run_id(self) -> str:
        """Return the number that the run here has had since it began; a new one where none has begun."""
        return read_run_id(self.journal) or secrets.token_hex(16)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the settings for people; nothing is read back from it."""
        try:
            (self.path / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise self._unusable_error(error) from error

    def _acquire(self, handle: int) -> None:
        try:
            import fcntl

            _retry_briefly(lambda: fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except (BlockingIOError, PermissionError) as error:
            raise RunFolderError(
                f"Another process is training in {str(self.path)!r}: {_read_holder(handle)}.",
                why="Two runs in one folder would overwrite each other's checkpoints and journal.",
                fix="Wait for it, stop it, or choose another folder (--run-dir).",
            ) from error
        except (ImportError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
                raise self._unusable_error(error) from error
            warnings.warn(
                f"{self.path} is not locked, because its file system or this system has no file locks ({error}): do "
                "not start a second process in it.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _write_holder(self, handle: int) -> None:
        """Write down who holds the lock, for the message to a second one."""
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        text = f"process {os.getpid()} on {platform.node()} since {now}".encode()
        try:
            os.ftruncate(handle, os.pwrite(handle, text, 0))
        except OSError as error:
            raise self._unusable_error(error) from error

    def _remove_run_files(self) -> None:
        try:
            for item in (self.path / name for name in RUN_FILES):
                if item.is_dir() and not item.is_symlink():
                    shutil.rmtree(item)
                else:
                    item.unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable_error(error) from error

    def _unusable_error(self, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"The run folder {str(self.path)!r} cannot be used: {error.strerror or error}.",
            why="The run would have nowhere to save what it learned.",
            fix="Choose another folder (--run-dir), or make this one writable.",
        )


def _retry_briefly(lock: Callable[[], None]) -> None:
    """Try for 0.1 s: who only looks whether a run is training (`runs list`) has the lock for microseconds."""
    for wait_s in (0.001, 0.01, 0.09):
        try:
            return lock()
        except BlockingIOError:
            time.sleep(wait_s)
    return lock()


def numbered_names(stem: Path) -> Iterator[Path]:
    """Yield a name, and then the same with -2, -3 ... behind it."""
    yield stem
    copy = 1
    while True:
        copy += 1
        yield stem.with_name(f"{stem.name}-{copy}")


def _read_holder(handle: int) -> str:
    return os.pread(handle, 1000, 0).decode(errors="replace") or "it has only just begun"
