"""The recipe of the fault campaign: a small run with everything that a resume can get wrong.

The run has dropout, BatchNorm, an average of the weights, a warm-up, shuffling, and a random augmentation that uses all
three generators. Labels are noisy, so that the run stops early and its final weights are not those of its last update.

Environment variables cause a fault in the process that imports this file:

FAULT_SLOW_S   seconds added before and after every sync and rename, so that a kill hits a save
FAULT_DIE_AT   k: SIGKILL before the k-th disk access below FAULT_BELOW
FAULT_CLOCK    seed: the wall clock jumps by hours, in both directions, between two calls of time.time
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from trueloop.recipes.recipe import Parts, Recipe
from trueloop.training.config import CheckpointConfig, MonitorConfig, OptimConfig, ScheduleConfig, TrainConfig
from trueloop.training.evaluation.metrics import Accuracy

TRAIN, VAL = 700, 200
CLASSES = 4
TOUCHES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the recipe."""

    width: int = 8


def build() -> Recipe:
    return Recipe(
        name="faults",
        summary="A small run for the fault campaign.",
        train=TrainConfig(
            epochs=12,
            effective_batch=32,
            micro_batch=12,  # a window of three, the last one smaller; and a short window at the end of an epoch
            threads=1,
            workers=0,
            optim=OptimConfig(lr=2e-2),
            schedule=ScheduleConfig(name="cosine", warmup=0.1),
            ema=0.9,
            monitor=MonitorConfig(patience=3),
            checkpoint=CheckpointConfig(every_updates=7),
        ),
        options=Options(),
        assemble=assemble,
    )


def assemble(options: Options) -> Parts:
    model = nn.Sequential(
        nn.Conv2d(1, options.width, 3, padding=1, bias=False),
        nn.BatchNorm2d(options.width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * options.width, CLASSES),
    )
    return Parts(
        model=model,
        objective=nn.CrossEntropyLoss(),
        train=Images(TRAIN, seed=1, augmented=True),
        val=Images(VAL, seed=2, augmented=False),
        test=Images(VAL, seed=3, augmented=False),
        metrics={"accuracy": Accuracy},
    )


class Images(Dataset[tuple[Tensor, int]]):
    """Noise [1, 8, 8] with a bright quarter, which is the class; a quarter of the labels are wrong."""

    def __init__(self, count: int, *, seed: int, augmented: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.randn(count, 1, 8, 8, generator=generator)
        self.labels = torch.randint(CLASSES, (count,), generator=generator)
        for image, label in zip(self.images, self.labels.tolist(), strict=True):
            row, column = divmod(label, 2)
            image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 0.5
        wrong = torch.rand(count, generator=generator) < 0.25
        self.labels[wrong] = torch.randint(CLASSES, (int(wrong.sum()),), generator=generator)
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.images[index], int(self.labels[index])
        if self.augmented:
            image = image + 0.3 * torch.randn(image.shape)
            image = image * float(np.random.uniform(0.8, 1.2))
            image = image.roll(random.randint(-1, 1), dims=-1)
        return image, label


def slow_down(seconds: float) -> None:
    """Add a delay before and after every sync and rename."""

    def slowed(call: Any) -> Any:
        def slow(*arguments: Any, **options: Any) -> Any:
            time.sleep(seconds)
            done = call(*arguments, **options)
            time.sleep(seconds)
            return done

        return slow

    for name in ("fsync", "rename", "replace"):
        setattr(os, name, slowed(getattr(os, name)))


def die_at(touch: int, below: str) -> None:
    """Send SIGKILL to this process before its k-th access to a path below a folder; every sync counts as an access."""
    touches = itertools.count(1)

    def touched(event: str, arguments: tuple[Any, ...] = ()) -> None:
        inside = event == "os.fsync" or (
            event in TOUCHES and arguments and str(arguments[0]).startswith(below) and not reads(event, arguments)
        )
        if inside and next(touches) == touch:
            os.kill(os.getpid(), signal.SIGKILL)

    def synced(handle: int, sync: Any = os.fsync) -> None:
        touched("os.fsync")
        sync(handle)

    os.fsync = synced
    sys.addaudithook(touched)


def reads(event: str, arguments: tuple[Any, ...]) -> bool:
    return event == "open" and not int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)


def unsteady_clock(seed: int) -> None:
    """Let `time.time` jump by up to a day in either direction at every call; the jumps add up."""
    chance, offset, steady = random.Random(seed), 0.0, time.time

    def jumping() -> float:
        nonlocal offset
        offset += chance.choice([-1, 1]) * chance.uniform(0, 86400)
        return steady() + offset

    time.time = jumping


if os.environ.get("FAULT_SLOW_S"):
    slow_down(float(os.environ["FAULT_SLOW_S"]))
if os.environ.get("FAULT_DIE_AT"):
    die_at(int(os.environ["FAULT_DIE_AT"]), os.environ["FAULT_BELOW"])
if os.environ.get("FAULT_CLOCK"):
    unsteady_clock(int(os.environ["FAULT_CLOCK"]))
