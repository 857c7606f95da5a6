"""Generate the events of a realistic synthetic run."""

import math
import random
import sys

import pytest

from trueloop.core.protocols import (
    CheckpointSaved,
    Evaluated,
    Notice,
    RunEnded,
    RunStarted,
    UpdateRow,
    UpdatesDone,
)

PER_EPOCH = 23
CLASSES = [f"digit {k}" for k in range(10)]
FACTS = {
    "recipe": "digits",
    "config": {
        "epochs": 12, "effective_batch": 64, "micro_batch": None, "seed": 0, "clip": 1.0, "freeze": [],
        "optim": {"name": "adamw", "lr": 0.001, "betas": [0.9, 0.999]},
        "schedule": {"name": "cosine", "warmup": 0.05},
        "monitor": {"metric": "val/loss", "mode": "min", "patience": None},
    },
    "options": {"width": 32, "dropout": 0.1},
    "parameters": 27722, "parameters_frozen": 0, "device": "cpu", "threads": 2,
    "sizes": {"train": 1437, "val": 180, "test": 180},
    "versions": {"python": "3.11.7", "torch": "2.13.0+cpu", "trueloop": "0.1.0", "numpy": "2.4.6"},
    "class_names": CLASSES, "data": {"train": "sha256:1f9a0b"},
    "plan": {"updates_per_epoch": 23, "effective_batch": 64, "window": 1},
}  # fmt: skip


def started(epochs=12, per_epoch=PER_EPOCH, start_update=0, name="digits", facts=FACTS):
    return RunStarted(name=name, epochs=epochs, updates=epochs * per_epoch, start_update=start_update, facts=facts)


def rows(first, last, per_epoch=PER_EPOCH, skipped=(), total=276):
    for update in range(first, last + 1):
        generator = random.Random(update)
        progress = update / total
        loss = 0.05 + 2.3 * math.exp(-5 * progress) * (1 + 0.2 * generator.gauss(0, 1) * math.exp(-progress))
        is_skipped = update in skipped
        yield UpdateRow(
            update, (update - 1) // per_epoch + 1, math.nan if is_skipped else loss,
            math.inf if is_skipped else 0.2 + 3 * math.exp(-3 * progress) * generator.lognormvariate(0, 0.4),
            1e-3 * min(1, update / 14) * (0.5 + 0.5 * math.cos(math.pi * progress)), 64,
            0.0004 * generator.lognormvariate(0, 1), 0.0080 * generator.lognormvariate(0, 0.15) + 0.002, is_skipped,
        )  # fmt: skip


def confusion(classes=10, correct=17):
    return [
        [correct if i == j else int(abs(i - j) == 5 or (i, j) == (8, 1)) for j in range(classes)]
        for i in range(classes)
    ]


def epoch_events(epoch, per_epoch=PER_EPOCH, skipped=(), total=276, from_update=None):
    first, last = (epoch - 1) * per_epoch + 1, epoch * per_epoch
    yield UpdatesDone(rows=list(rows(from_update or first, last, per_epoch, skipped, total)))
    progress = last / total
    loss = 0.09 + 2.0 * math.exp(-5.5 * progress) + 0.3 * max(0, progress - 0.8)
    metrics = {"loss": loss, "accuracy": 0.985 - 0.8 * math.exp(-6 * progress)}
    yield Evaluated(
        update=last, epoch=epoch, split="val", metrics=metrics, tables={"confusion": confusion()}, seconds=0.02,
        best=progress < 0.85,
    )  # fmt: skip
    yield CheckpointSaved(
        update=last, epoch=epoch, path=f"checkpoints/update-{last:08d}",
        metrics={f"val/{name}": value for name, value in metrics.items()}, seconds=0.011,
    )  # fmt: skip


def finished_run(epochs=12, per_epoch=PER_EPOCH, skipped=(), facts=FACTS, name="digits", reason="finished"):
    total = epochs * per_epoch
    yield started(epochs, per_epoch, name=name, facts=facts)
    for update in skipped:
        yield Notice(
            update=update, kind="not_finite", message=f"Update {update} was not finite and was skipped; input has nan.",
            details={"index": 17},
        )  # fmt: skip
    for epoch in range(1, epochs + 1):
        yield from epoch_events(epoch, per_epoch, skipped, total)
    yield Evaluated(
        update=total, epoch=epochs, split="test", metrics={"loss": 0.081, "accuracy": 0.9833},
        tables={"confusion": confusion()}, seconds=0.02, best=False,
    )  # fmt: skip
    yield RunEnded(update=total, reason=reason, seconds=12.345)


@pytest.fixture(scope="session")
def synthetic():
    """Return this module, which test files cannot import."""
    return sys.modules[__name__]


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Return a function that writes events as a run and returns the run folder."""
    from trueloop.runs.journal import Journal

    def write(events):
        run_dir = tmp_path_factory.mktemp("run")
        journal = Journal(run_dir / "journal.jsonl", now=lambda: 1_700_000_000.0)
        for event in events:
            journal.report(event)
        journal.close()
        return run_dir

    return write
