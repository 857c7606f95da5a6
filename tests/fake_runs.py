"""Create run folders for tests: short journals and, on request, tiny real checkpoints."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from trueloop.core.protocols import (
    CheckpointSaved,
    Evaluated,
    Notice,
    RunEnded,
    RunEvent,
    RunStarted,
    UpdateRow,
    UpdatesDone,
)
from trueloop.runs.journal import Journal
from trueloop.training.checkpoint.checkpoints import CheckpointFolder

PER_EPOCH = 2
HOSTILE = "</title><script>alert(1)</script>\x1b[31m\"'$x$"
FACTS: dict[str, Any] = {
    "recipe": "digits",
    "config": {
        "epochs": 3,
        "optim": {"name": "adamw", "lr": 0.001, "betas": [0.9, 0.999]},
        "monitor": {"metric": "val/loss", "mode": "min"},
        "checkpoint": {"final": "best", "mirror": None},
    },
    "options": {"width": 8},
    "code": {"recipe.py": "aa/bb"},
    "git": "0123456789ab",
    "sizes": {"train": 8},
    "data": {"train": "8:sha256:1f"},
    "versions": {"torch": "2.13.0", "python": "3.11.7"},
}


def row(update: int, loss: float = 1.0, *, skipped: bool = False) -> UpdateRow:
    """Return a row of the journal: one update of 8 examples that takes 10 ms."""
    return UpdateRow(update, (update - 1) // PER_EPOCH + 1, loss, 0.5, 0.001, 8, 0.001, 0.01, skipped)


class FakeRuns:
    """Writes runs into a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(
        self,
        name: str,
        losses: Sequence[float] = (0.5, 0.3, 0.4),
        *,
        end: str = "finished",
        at: float = 1_700_000_000.0,
        checkpoints: Collection[int] = (),
        accuracies: Sequence[float] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> Path:
        """Write a run with two updates and one evaluation per epoch.

        Args:
            name: name of the folder.
            losses: val/loss after each epoch.
            end: reason of the end; empty for a run that was killed.
            at: time of all journal lines, in seconds since 1970.
            checkpoints: updates whose checkpoints exist on disk; the journal lists a checkpoint after every epoch.
            accuracies: val/accuracy after each epoch.
            facts: facts that replace those of `FACTS`.
        """
        run_facts = {**copy.deepcopy(FACTS), "run_id": hashlib.md5(os.fsencode(name)).hexdigest(), **(facts or {})}
        total = PER_EPOCH * len(losses)
        events: list[RunEvent] = [RunStarted(name="digits", epochs=3, updates=total, start_update=0, facts=run_facts)]
        folder = self.root / name
        for epoch, loss in enumerate(losses, 1):
            update, best = epoch * PER_EPOCH, loss == min(losses[:epoch])
            metrics = {"loss": loss, **({"accuracy": accuracies[epoch - 1]} if accuracies else {})}
            events += [
                UpdatesDone(rows=[row(update - 1, loss + 0.1), row(update, loss)]),
                Evaluated(update=update, epoch=epoch, split="val", metrics=metrics, tables={}, seconds=0.1, best=best),
                CheckpointSaved(
                    update=update,
                    epoch=epoch,
                    path=f"runs/{name}/checkpoints/update-{update:09d}",
                    metrics={f"val/{key}": value for key, value in metrics.items()},
                    seconds=0.01,
                ),
            ]
        if end:
            events.append(RunEnded(update=total, reason=end, seconds=1.5))
        self.write(name, events, at=at)
        for update in checkpoints:
            self.save(folder, update, {"val/loss": losses[update // PER_EPOCH - 1]})
        return folder

    def write(self, name: str, events: Sequence[RunEvent], *, at: float = 1_700_000_000.0) -> Path:
        """Append events to a run's journal."""
        journal = Journal(self.root / name / "journal.jsonl", now=lambda: at)
        for event in events:
            journal.report(event)
        journal.close()
        return self.root / name

    def save(self, folder: Path, update: int, metrics: dict[str, float] | None = None) -> Path:
        """Save a checkpoint with eight numbers."""
        checkpoints = CheckpointFolder(folder / "checkpoints", keep_last=100, keep_best=100)
        state = {"model": {"weight": torch.arange(8.0) + update}, "position": {"update": update}}
        return checkpoints.save(state, update=update, epoch=update // PER_EPOCH, metrics=metrics or {}).path

    def hostile(self, name: str = HOSTILE.replace("/", "_")) -> Path:
        """Write a run whose names try to inject HTML, terminal codes and paths."""
        facts = {"recipe": HOSTILE, "config": {"monitor": {"metric": f"val/{HOSTILE}", "mode": "min"}}}
        return self.write(
            name,
            [
                RunStarted(name=HOSTILE, epochs=1, updates=2, start_update=0, facts=facts),
                UpdatesDone(rows=[row(1), row(2)]),
                Evaluated(update=2, epoch=1, split="val", metrics={HOSTILE: 0.5}, tables={}, seconds=0.1, best=True),
                CheckpointSaved(update=2, epoch=1, path="../../../etc", metrics={}, seconds=0.1),
                Notice(update=2, kind=HOSTILE, message=HOSTILE, details={}),
                RunEnded(update=2, reason=HOSTILE, seconds=1.0),
            ],
        )


def damage(run_dir: Path, line: int = 2) -> Path:
    """Damage one line of a journal, counted from 1."""
    path = run_dir / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = b'{"event":"upd\x00\xff\n'
    path.write_bytes(b"".join(lines))
    return run_dir


def records(run_dir: Path) -> list[dict[str, Any]]:
    """Read a journal as raw records."""
    return [json.loads(line) for line in (run_dir / "journal.jsonl").read_text().splitlines()]
