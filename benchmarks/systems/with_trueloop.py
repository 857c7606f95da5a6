"""Train with trueloop: `Trainer(model, loss, settings).fit(batches)`."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.data import Dataset

from systems.task import Task
from trueloop import OptimConfig, ScheduleConfig, TrainConfig, Trainer


def train(task: Task, *, own_optimizer: bool = False, **settings: Any) -> None:
    """Train; with ``own_optimizer``, trueloop's default optimizer is used instead of the task's."""
    config = TrainConfig(
        epochs=task.epochs,
        clip=task.clip,
        device="cpu",
        optim=OptimConfig(lr=1e-3),
        schedule=ScheduleConfig(name="cosine" if task.cosine else "constant"),
        **settings,
    )
    optimizer = None if own_optimizer else lambda _parameters: task.optimizer(task.model)
    trainer = Trainer(
        model=task.model, objective=task.loss, config=config, optimizer=optimizer, reporters=[UpdateRecorder()]
    )
    trainer.fit(task.batches, accumulate=task.window)


class UpdateRecorder:
    """Records every reported update, as the hand-written loops do."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def report(self, event: Any) -> None:
        """Record updates; ignore other events."""
        if hasattr(event, "rows"):
            self.rows.extend(event.rows)

    def close(self) -> None:
        """Do nothing."""


def train_dataset(
    model: nn.Module, loss: nn.Module, dataset: Dataset[Any], *, epochs: int, batch: int, **settings: Any
) -> None:
    """Train on a map-style dataset with the default settings: trueloop's loader, fused optimizer, clipping, cosine."""
    config = TrainConfig(epochs=epochs, effective_batch=batch, device="cpu", workers=0, **settings)
    Trainer(model=model, objective=loss, config=config).fit(dataset)
