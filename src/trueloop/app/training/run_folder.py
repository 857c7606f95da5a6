"""Manage the run folder: its paths, its lock, and the removal of an earlier run.

RUN/journal.jsonl               the events, line by line
RUN/config.json                 the settings
RUN/checkpoints/update-…/       the complete state, to resume from
RUN/final/model.safetensors     the trained weights
RUN/curves.png, report.html     the plotted curves, and the report
RUN/.lock                       locked by the training process; the existence of the file alone is no lock
"""

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

# .lock is not among these: if it were removed while it is locked, a second process could lock a new file.
RUN_FILES = ("journal.jsonl", "config.json", "checkpoints", "final", "curves.png", "report.html")

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}

_OPEN_LOCKS = handles_closed_after_fork()  # a forked loader process must not keep the lock after the run


class RunFolder:
    """The folder of one run.

    Args:
        path: the folder, which is created if it does not exist.

    Raises:
        RunFolderError: the folder cannot be created or written.
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
        """Lock the folder against training by other processes, for a ``with`` block.

        The kernel releases the lock when the process ends for any reason, so a lock is never stale. Loader processes
        do not inherit it. A network file system must support locks; NFS does, also between machines. If locks are not
        supported, a warning is issued.

        Args:
            fresh: True to remove the files of an earlier run; other files are not removed.

        Raises:
            RunFolderError: another process holds the lock, or the folder cannot be written.
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
            if handle in _OPEN_LOCKS:  # otherwise this is a forked child, which has closed the handle already
                _OPEN_LOCKS.discard(handle)
                os.close(handle)

    @property
    def journal(self) -> Path:
        """Path of the journal."""
        return self.path / "journal.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """Path of the trained weights."""
        return self.path / "final" / "model.safetensors"

    @property
    def curves(self) -> Path:
        """Path of the plotted curves."""
        return self.path / "curves.png"

    @property
    def report(self) -> Path:
        """Path of the report."""
        return self.path / "report.html"

    def run_id(self) -> str:
        """Return the id of the run in this folder; a new one if no run has started."""
        return read_run_id(self.journal) or secrets.token_hex(16)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the settings to a file for the user; trueloop never reads the file."""
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
                fix="Wait for that process, stop it, or choose another folder (--run-dir).",
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
        """Write the holder of the lock to the lock file, for the error message of a second process."""
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        text = f"process {os.getpid()} on {platform.node()} since {now}".encode()
        try:
            os.ftruncate(handle, os.pwrite(handle, text, 0))
        except OSError as error:
            raise self._unusable_error(error) from error

    def _remove_run_files(self) -> None:
        try:
            for name in RUN_FILES:
                remove_file_or_folder(self.path / name)
        except OSError as error:
            raise self._unusable_error(error) from error

    def _unusable_error(self, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"The run folder {str(self.path)!r} cannot be used: {error.strerror or error}.",
            why="The run needs the folder to save its checkpoints and results.",
            fix="Choose another folder (--run-dir), or make this one writable.",
        )


def remove_file_or_folder(path: Path) -> None:
    """Remove a file, a link, or a folder with its content; does nothing if the path does not exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _retry_briefly(lock: Callable[[], None]) -> None:
    """Retry for 0.1 s: checking whether a run is training (`runs list`) takes the lock for microseconds."""
    for wait_s in (0.001, 0.01, 0.09):
        try:
            return lock()
        except BlockingIOError:
            time.sleep(wait_s)
    return lock()


def numbered_names(stem: Path) -> Iterator[Path]:
    """Yield a path, and then the same path with the suffixes -2, -3, ..."""
    yield stem
    number = 1
    while True:
        number += 1
        yield stem.with_name(f"{stem.name}-{number}")


def _read_holder(handle: int) -> str:
    return os.pread(handle, 1000, 0).decode(errors="replace") or "it has just started"
