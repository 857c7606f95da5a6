"""trueloop: `Trainer(model, loss, settings).fit(batches)`."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.data import Dataset

from systems.task import Task
from trueloop import OptimConfig, ScheduleConfig, TrainConfig, Trainer


def train(task: Task, *, own_optimizer: bool = False, **settings: Any) -> None:
    """Train; ``own_optimizer`` takes trueloop's default one in place of the task's."""
    config = TrainConfig(
        epochs=task.epochs,
        clip=task.clip,
        device="cpu",
        optim=OptimConfig(lr=1e-3),
        schedule=ScheduleConfig(name="cosine" if task.cosine else "constant"),
        **settings,
    )
    optimizer = None if own_optimizer else lambda _parameters: task.optimizer(task.model)
    trainer = Trainer(model=task.model, objective=task.loss, config=config, optimizer=optimizer, reporters=[Kept()])
    trainer.fit(task.batches, accumulate=task.window)


class Kept:
    """Keeps every reported update, as the loops by hand do."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def report(self, event: Any) -> None:
        """Take the updates, leave the rest."""
        if hasattr(event, "rows"):
            self.rows.extend(event.rows)

    def close(self) -> None:
        """Nothing to let go."""


def train_dataset(
    model: nn.Module, loss: nn.Module, dataset: Dataset[Any], *, epochs: int, batch: int, **settings: Any
) -> None:
    """Train with the default settings on a map-style dataset: own loader, fused optimizer, clipping, cosine."""
    config = TrainConfig(epochs=epochs, effective_batch=batch, device="cpu", workers=0, **settings)
    Trainer(model=model, objective=loss, config=config).fit(dataset)
