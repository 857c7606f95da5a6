"""A recipe that fails on demand: small, in float64, with dropout, BatchNorm and an average of the weights.

The environment variable FAULTS lists faults as words: "1/0/forward/9/kill" sends SIGKILL in the launcher's attempt 1,
in rank 0, at the ninth training forward pass of that process.

stages: assemble, sample (a training sample is read), forward (training), evaluate (forward pass of an evaluation),
        sync (of a file to the disk)
actions: kill (this process), launcher (kill it), both, term, int (signals to the launcher), stop (SIGTERM to this
        process), raise, full (no space left), nan, hang, wider (ranks build different models)

SLOW_S is the minimum duration of a training forward pass in seconds.
TRAINED names a folder in which every process writes the samples it trained on, one line per forward pass.
"""

import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from trueloop import Parts, Recipe, TrainConfig
from trueloop.training.config import CheckpointConfig, GuardConfig, OptimConfig, ScheduleConfig

TRAIN, VAL, CLASSES = 68, 17, 3
RANK, ATTEMPT = int(os.environ.get("RANK", "0")), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
FAULTS = [word.split("/") for word in os.environ.get("FAULTS", "").split()]
LAUNCHER = os.getppid()
_counts = {}
"""Number of times that this process has reached each stage."""


def reach(stage):
    """Count that this process reaches a stage, and perform the action planned for it; return the action, or ""."""
    _counts[stage] = count = _counts.get(stage, 0) + 1
    current = (str(ATTEMPT), str(RANK), stage)
    for *planned, number, action in FAULTS:
        if tuple(planned) == current and int(number) == count:
            perform(action)
            return action
    return ""


def perform(action):
    if action in ("launcher", "both"):
        os.kill(LAUNCHER, signal.SIGKILL)
    if action in ("kill", "both"):
        os.kill(os.getpid(), signal.SIGKILL)
    if action in ("term", "int"):
        os.kill(LAUNCHER, {"term": signal.SIGTERM, "int": signal.SIGINT}[action])
    if action == "stop":
        os.kill(os.getpid(), signal.SIGTERM)
    if action == "raise":
        raise ValueError("label 7 of 3 classes")
    if action == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if action == "hang":
        time.sleep(600)


def sync(handle, real=os.fsync):
    reach("sync")
    real(handle)


os.fsync = sync


@dataclass(frozen=True, kw_only=True)
class Options:
    dropout: float = 0.2
    width: int = 16
    batchnorm: bool = True


class Samples(torch.utils.data.Dataset):
    """Samples of noise [6] and their index, which the model only writes down."""

    def __init__(self, count, seed, *, is_training=False):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 7, generator=generator, dtype=torch.float64)
        self.x[:, 6] = torch.arange(count)
        self.y = torch.randint(CLASSES, (count,), generator=generator)
        self.is_training = is_training

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        if self.is_training:
            reach("sample")
        return self.x[index], self.y[index]


class Net(nn.Module):
    def __init__(self, width, dropout, batchnorm):
        super().__init__()
        norm = nn.BatchNorm1d if batchnorm else nn.LayerNorm
        self.layers = nn.Sequential(nn.Linear(6, width), norm(width), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(width, CLASSES)
        self.double()

    def forward(self, x):
        action = reach("forward" if self.training else "evaluate")
        if self.training and "TRAINED" in os.environ:
            with (Path(os.environ["TRAINED"]) / f"{RANK}").open("a") as file:
                print(*map(int, x[:, 6].tolist()), file=file)
        time.sleep(self.training * float(os.environ.get("SLOW_S", "0")))
        return self.head(self.layers(x[:, :6])) * (float("nan") if action == "nan" else 1.0)


def assemble(options):
    reach("assemble")
    width = options.width + (RANK if any(fault[-1] == "wider" for fault in FAULTS) else 0)
    return Parts(
        model=Net(width, options.dropout, options.batchnorm),
        objective=nn.CrossEntropyLoss(),
        train=Samples(TRAIN, 1, is_training=True),
        val=Samples(VAL, 2),
        test=Samples(9, 3),
    )


def build():
    return Recipe(
        name="failing",
        summary="Fails on demand.",
        train=TrainConfig(
            epochs=3,
            effective_batch=12,  # five full windows and one of 8 samples
            workers=0,
            threads=1,
            device="cpu",
            ema=0.9,
            optim=OptimConfig(lr=1e-2),
            schedule=ScheduleConfig(warmup=0.2),
            checkpoint=CheckpointConfig(every_updates=4),
            guard=GuardConfig(max_in_a_row=3),
        ),
        options=Options(),
        assemble=assemble,
    )
