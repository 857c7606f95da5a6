"""Weights & Biases as a store, offline: a folder that `wandb sync` uploads when the user wants it to."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trueloop.runs.tracking.run_metadata import truncate
from trueloop.runs.tracking.sink import RunMetadata, StoreBatch, StoreError, SyncCursor
from trueloop.runs.tracking.sync_cursor import MarkFile
from trueloop.runs.tracking.target import Target

_SETTINGS = {
    "WANDB_MODE": "offline",  # not a default: nothing of a run leaves this machine by itself
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "WANDB_CONSOLE": "off",
}
_EXIT_CODES = {"finished": 0, "early_stop": 0, "running": 0}


class WandbSink:
    """One offline run of W&B in FOLDER/wandb. It is written once, from the beginning: W&B can append to none.

    Args:
        target: names the folder, made where it is not.

    Cost: W&B starts a process of its own; two seconds.
    """

    is_idempotent = False
    can_append = False

    def __init__(self, target: Target) -> None:
        os.environ.update(_SETTINGS)
        self._root = Path(target.address)
        self._mark: MarkFile | None = None
        self._run: Any = None

    def find_cursor(self, run: RunMetadata) -> SyncCursor | None:
        """Read whether the run was written to its end."""
        self._mark = self._place(run)
        mark = self._mark.read()
        return mark if mark and self._folder(self._mark, run) else None

    def open_run(self, run: RunMetadata) -> None:
        """Begin an offline run by the run's own id."""
        if self._run is not None:
            return
        mark = self._mark = self._mark or self._place(run)
        with self._talking():
            import wandb

            mark.write(None)  # its folder is known to be ours also where we are killed before it has a name
            quiet = wandb.Settings(
                disable_git=True,  # the journal knows what was run; here stands the process that copies it
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
            mark.about = {"folder": Path(self._run.settings.sync_dir).name}

    def write(self, batch: StoreBatch, cursor: SyncCursor) -> None:
        """Log metrics by step; checkpoints and remarks belong to the run as a whole."""
        assert self._mark is not None
        with self._talking():
            for point in batch.points:
                self._run.log({**point.values, "_timestamp": point.time_ms / 1000}, step=point.step)
            for saved in batch.checkpoints:
                told = {"path": saved.path, "update": saved.step, "epoch": saved.epoch, **saved.values}
                self._run.summary[f"checkpoints/{Path(saved.path).name}"] = told
            for each in batch.notes:
                said = f"update {each.step}, {each.kind}: {truncate(each.message, 4000)}"
                self._run.summary[f"notes/{each.number:03d}"] = said
        self._mark.write(cursor)

    def finish_run(self, state: str, time_ms: int, cursor: SyncCursor) -> None:
        """Close the offline run; only a closed one is whole."""
        assert self._mark is not None
        with self._talking():
            self._run.summary["trueloop.state"] = state
            self._run.finish(exit_code=_EXIT_CODES.get(state, 1))
        self._run = None
        self._mark.write(cursor)

    def erase(self, card: RunMetadata) -> bool:
        """Delete what we made for this run: the offline run's folder, and those that a killed writer left."""
        self.close()
        mark = self._place(card)
        with self._talking():
            folders = [each for each in mark.folder.iterdir() if _is_of(each, card)] if mark.is_ours else []
            for folder in folders:
                shutil.rmtree(folder)
            mark.remove()
        self._mark = None
        return bool(folders)

    def close(self) -> None:
        """Let W&B's own process end; a run that is not ended stays marked as not whole."""
        run, self._run = self._run, None
        if run is not None:
            with self._talking():
                run.finish(exit_code=1)

    def _place(self, card: RunMetadata) -> MarkFile:
        return MarkFile(self._root / "wandb" / f"trueloop-{card.run_id}.json", card.run_id)

    def _folder(self, mark: MarkFile, card: RunMetadata) -> Path | None:
        """Return the offline run's folder as the mark names it, if it is one of this run's."""
        name = str(mark.about.get("folder", ""))
        folder = mark.folder / name
        return folder if folder.name == name and _is_of(folder, card) else None

    @contextmanager
    def _talking(self) -> Generator[None]:
        """Turn what W&B and the disk raise into ours."""
        try:
            yield
        except Exception as error:
            raise StoreError(
                f"W&B cannot write to {self._root}: {type(error).__name__}: {truncate(str(error), 300)}",
                why="The journal is whole; only its copy there is not.",
                fix="Free space or choose another folder, then: trueloop runs sync.",
            ) from error


def _is_of(folder: Path, card: RunMetadata) -> bool:
    """True for the folder of an offline run with this run's id."""
    ours = re.fullmatch(rf"offline-run-[0-9_]+-{card.run_id}", folder.name)
    return bool(ours) and folder.is_dir() and not folder.is_symlink()
