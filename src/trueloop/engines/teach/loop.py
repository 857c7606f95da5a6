"""Fills the teaching loop with a small network and data, both drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from trueloop.ground.teaching import Operation, TeachingLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What is trained on what."""

    seed: int = 0
    samples: int = 88
    """The last batch is a short one, and so is the last window."""
    held_out: int = 24
    features: int = 6
    classes: int = 3
    width: int = 16
    batch: int = 8
    window: int = 2
    epochs: int = 3
    lr: float = 0.05
    dropout: float = 0.2


def teaching_loop(lesson: Lesson | None = None) -> TeachingLoop:
    """Build a loop that is correct in every operation.

    Returns:
        A loop on the CPU; its `run` trains in place. Everything random in it follows ``lesson.seed``, but for dropout,
        which draws from torch's global generator.
    """
    lesson = lesson or Lesson()
    generator = torch.Generator().manual_seed(lesson.seed)
    train, held_out = _data(lesson, generator)
    model = _network(lesson, generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=lesson.lr, momentum=0.9)
    updates = lesson.epochs * -(-len(train) // (lesson.window))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)
    criterion = nn.CrossEntropyLoss()

    def clip() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)

    def update() -> None:
        optimizer.step()

    def advance() -> None:
        scheduler.step()

    def clear() -> None:
        optimizer.zero_grad()

    def batches(epoch: int) -> DataLoader[Any]:
        return train

    def mean_share(loss: Tensor, size: int) -> Tensor:
        return loss / size

    return TeachingLoop(
        model=model,
        optimizer=optimizer,
        epochs=lesson.epochs,
        window=lesson.window,
        batches=batches,
        held_out=lambda: held_out,
        train_mode=lambda: _set_train(model),
        forward=model,
        loss=criterion,
        share=mean_share,
        backward=lambda loss: loss.backward(),
        operations={
            Operation.CLIP: clip,
            Operation.UPDATE: update,
            Operation.SCHEDULE: advance,
            Operation.CLEAR: clear,
        },
        keep=lambda loss: loss.item(),
        evaluate=accuracy,
    )


def accuracy(loop: TeachingLoop) -> float:
    """Share of held-out samples that are classified rightly; eval mode, no graph."""
    loop.model.eval()
    right = seen = 0
    with torch.no_grad():
        for inputs, targets in loop.held_out():
            right += int((loop.model(inputs).argmax(1) == targets).sum())
            seen += len(targets)
    return right / seen


def _set_train(model: nn.Module) -> None:
    model.train()


def _network(lesson: Lesson, generator: torch.Generator) -> nn.Module:
    layers = [
        nn.Linear(lesson.features, lesson.width),
        nn.BatchNorm1d(lesson.width),
        nn.ReLU(),
        nn.Dropout(lesson.dropout),
        nn.Linear(lesson.width, lesson.classes),
    ]
    with torch.no_grad():
        for layer in layers:
            if isinstance(layer, nn.Linear):
                bound = layer.in_features**-0.5
                for parameter in layer.parameters():
                    parameter.uniform_(-bound, bound, generator=generator)
    return nn.Sequential(*layers)


def _data(lesson: Lesson, generator: torch.Generator) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Classes that a linear map tells apart, with some noise: inputs [N, features], targets [N]."""
    total = lesson.samples + lesson.held_out
    inputs = torch.randn(total, lesson.features, generator=generator)
    weights = torch.randn(lesson.features, lesson.classes, generator=generator)
    noise = 0.3 * torch.randn(total, lesson.classes, generator=generator)
    targets = (inputs @ weights + noise).argmax(1)
    train = TensorDataset(inputs[: lesson.samples], targets[: lesson.samples])
    held_out = TensorDataset(inputs[lesson.samples :], targets[lesson.samples :])
    order = torch.Generator().manual_seed(lesson.seed)
    return (
        DataLoader(train, lesson.batch, shuffle=True, generator=order),
        DataLoader(held_out, lesson.batch),
    )
