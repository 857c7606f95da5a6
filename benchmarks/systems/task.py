"""Define the task of every system: the same model, batches, optimizer and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch
from measure import Batches
from torch import Tensor, nn
from torch.optim import Optimizer

LOG_EVERY = 50  # updates between two reads of the recorded numbers; also Lightning's default


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A training run, described independently of the systems."""

    model: nn.Module
    loss: nn.Module
    """A torch.nn loss with mean reduction."""
    batches: Batches
    """Micro-batches of (inputs, targets), in the order of every epoch."""
    optimizer: Callable[[nn.Module], Optimizer]
    epochs: int = 1
    window: int = 1
    """Number of micro-batches per update."""
    clip: float | None = None
    """Upper bound of the gradient norm."""
    cosine: bool = False
    """True = the learning rate follows a cosine schedule, one step per update, down to zero."""
    record: bool = False
    """True = record loss, gradient norm and learning rate of every update; they are read every `LOG_EVERY` updates."""

    @property
    def updates(self) -> int:
        """Number of updates in the run, including a short last window of each epoch."""
        return self.epochs * ceil(len(self.batches) / self.window)


def decay_groups(model: nn.Module, weight_decay: float = 0.01) -> list[dict[str, object]]:
    """Return parameter groups as in GPT training scripts: matrices with weight decay, biases and norms without."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def adamw(model: nn.Module, *, fused: bool | None = None) -> Optimizer:
    """Create AdamW over the two decay groups; with ``fused=None``, torch chooses the kernel."""
    return torch.optim.AdamW(decay_groups(model), lr=1e-3, fused=fused)


def plain_adamw(model: nn.Module) -> Optimizer:
    """Create AdamW as in every tutorial: with one group, and the kernel that torch chooses."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def fused_adamw(model: nn.Module) -> Optimizer:
    """Create AdamW with fused kernels: one kernel per group computes the update."""
    return adamw(model, fused=True)


def cosine(optimizer: Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Create torch's cosine schedule over the complete run."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)


class Journal:
    """Records loss, norm and learning rate of every update; tensors are read in blocks, so the loop rarely waits."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float]] = []
        self.pending: list[tuple[Tensor, Tensor, float]] = []

    def add(self, loss: Tensor, norm: Tensor, rate: float) -> None:
        """Record one update."""
        self.pending.append((loss, norm, rate))
        if len(self.pending) == LOG_EVERY:
            losses = torch.stack([row[0] for row in self.pending]).tolist()
            norms = torch.stack([row[1] for row in self.pending]).tolist()
            self.rows.extend(zip(losses, norms, (row[2] for row in self.pending), strict=True))
            self.pending.clear()
