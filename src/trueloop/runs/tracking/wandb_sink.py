"""Write runs to an offline Weights & Biases folder, which the user uploads with `wandb sync`."""

import os
import re
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from trueloop.runs.tracking.sink import RunMetadata, StoreBatch, StoreError, SyncCursor, truncate
from trueloop.runs.tracking.sync_cursor import CursorFile
from trueloop.runs.tracking.target import Target

_SETTINGS = {
    "WANDB_MODE": "offline",  # overrides the user's setting: no data leaves this machine automatically
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
}
_EXIT_CODES = {"finished": 0, "early_stop": 0, "running": 0}


class WandbSink:
    """A `Sink` that writes one offline W&B run to FOLDER/wandb, always from the beginning: W&B cannot append offline.

    Args:
        target: the folder, which is created if it does not exist.

    Cost: starting the process of W&B takes two seconds.
    """

    is_idempotent = False
    can_append = False

    def __init__(self, target: Target) -> None:
        os.environ.update(_SETTINGS)
        self._root = Path(target.address)
        self._cursor_file: CursorFile | None = None
        self._run: Any = None

    def find_cursor(self, run: RunMetadata) -> SyncCursor | None:
        """Read the cursor of the run; None if its offline folder is missing."""
        self._cursor_file = self._make_cursor_file(run)
        cursor = self._cursor_file.read()
        return cursor if cursor and self._run_folder(self._cursor_file, run) else None

    def open_run(self, run: RunMetadata) -> None:
        """Create an offline run with the same run id."""
        if self._run is not None:
            return
        cursor_file = self._cursor_file = self._cursor_file or self._make_cursor_file(run)
        with self._translated_errors():
            import wandb

            cursor_file.write(None)  # marks the folder as this run's even if the process is killed before W&B names it
            quiet = wandb.Settings(
                disable_git=True,  # the journal records the code; W&B would record the sync process
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            )
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT") or re.sub(r"[^\w.-]", "-", run.group)[:128],
                id=run.run_id,
                name=run.name,
                dir=str(self._root),
                mode="offline",
                config={**run.params, "trueloop": dict(run.tags)},
                settings=quiet,
            )
            cursor_file.extra = {"folder": Path(self._run.settings.sync_dir).name}

    def write(self, batch: StoreBatch, cursor: SyncCursor) -> None:
        """Log metrics by step; checkpoints and notes go to the summary of the run."""
        assert self._cursor_file is not None
        with self._translated_errors():
            for point in batch.points:
                self._run.log({**point.values, "_timestamp": point.time_ms / 1000}, step=point.step)
            for saved in batch.checkpoints:
                summary = {"path": saved.path, "update": saved.step, "epoch": saved.epoch, **saved.values}
                self._run.summary[f"checkpoints/{Path(saved.path).name}"] = summary
            for note in batch.notes:
                self._run.summary[f"notes/{note.number:03d}"] = str(note)
        self._cursor_file.write(cursor)

    def finish_run(self, state: str, time_ms: int, cursor: SyncCursor) -> None:
        """Finish the offline run; an unfinished run is incomplete."""
        assert self._cursor_file is not None
        with self._translated_errors():
            self._run.summary["trueloop.state"] = state
            path = Path(self._run.settings.sync_file)
            self._run.finish(exit_code=_EXIT_CODES.get(state, 1))
            _wait_until_written(path)
        self._run = None
        self._cursor_file.write(cursor)

    def delete_run(self, run: RunMetadata) -> bool:
        """Delete the offline folders of a run, also the folder of a killed writer."""
        self.close()
        cursor_file = self._make_cursor_file(run)
        with self._translated_errors():
            paths = cursor_file.folder.iterdir() if cursor_file.belongs_to_run else ()
            folders = [path for path in paths if _is_folder_of(path, run)]
            for folder in folders:
                shutil.rmtree(folder)
            cursor_file.remove()
        self._cursor_file = None
        return bool(folders)

    def close(self) -> None:
        """End the W&B process; an unfinished run remains incomplete."""
        run, self._run = self._run, None
        if run is not None:
            with self._translated_errors():
                run.finish(exit_code=1)

    def _make_cursor_file(self, run: RunMetadata) -> CursorFile:
        return CursorFile(self._root / "wandb" / f"trueloop-{run.run_id}.json", run.run_id)

    def _run_folder(self, cursor_file: CursorFile, run: RunMetadata) -> Path | None:
        """Return the offline folder that the cursor file names, if it belongs to this run."""
        name = str(cursor_file.extra.get("folder", ""))
        folder = cursor_file.folder / name
        return folder if folder.name == name and _is_folder_of(folder, run) else None

    @contextmanager
    def _translated_errors(self) -> Generator[None]:
        """Convert every exception of W&B and the file system to a `StoreError`."""
        try:
            yield
        except Exception as error:
            raise StoreError(
                f"W&B cannot write to {self._root}: {type(error).__name__}: {truncate(str(error), 300)}",
                why="The journal is complete; only its copy in the store is not.",
                fix="Free space or choose another folder, then: trueloop runs sync.",
            ) from error


def _wait_until_written(path: Path) -> None:
    """Wait for the process of W&B, which writes the end of the file only after `finish` has returned.

    Raises:
        TimeoutError: the end of the run is not in the file after 30 seconds.
    """
    deadline = time.monotonic() + 30
    while not _has_end(path):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the end of the run is not in {path.name} after 30 seconds")
        time.sleep(0.02)


def _has_end(path: Path) -> bool:
    """Return True if the last record of the file is the exit code of the run.

    The file is a LevelDB log: a record of n bytes follows its checksum (4 bytes), n (2 bytes) and its kind (1 byte:
    1 is a whole record, 4 the last part of one that crosses a block). An exit record has about 40 bytes.
    """
    protocol: Any = import_module("wandb.proto.wandb_internal_pb2")  # generated code, without types
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 256))
        tail = file.read()[-256:]  # the file may have grown since
    for length in range(1, len(tail) - 7):
        payload = tail[-length:]
        if tail[-length - 3 : -length] == bytes([length, 0, 4]):
            return True
        if tail[-length - 3 : -length] == bytes([length, 0, 1]):
            return protocol.Record.FromString(payload).WhichOneof("record_type") == "exit"
    return False


def _is_folder_of(folder: Path, run: RunMetadata) -> bool:
    """Return True for the folder of an offline run with this run's id."""
    match = re.fullmatch(rf"offline-run-[0-9_]+-{run.run_id}", folder.name)
    return bool(match) and folder.is_dir() and not folder.is_symlink()
