"""What every system is given: the same model, batches, optimizer and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch
from measure import Batches
from torch import Tensor, nn
from torch.optim import Optimizer

LOG_EVERY = 50  # updates between two reads of the recorded numbers; Lightning's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A training run, described without any system's vocabulary."""

    model: nn.Module
    loss: nn.Module
    """A torch.nn loss with mean reduction."""
    batches: Batches
    """Micro-batches of (inputs, targets), trained on in this order in every epoch."""
    optimizer: Callable[[nn.Module], Optimizer]
    epochs: int = 1
    window: int = 1
    """Micro-batches per update."""
    clip: float | None = None
    """Upper bound of the gradient norm."""
    cosine: bool = False
    """Cosine schedule, advanced once per update, down to zero."""
    record: bool = False
    """Keep loss, gradient norm and learning rate of every update; read every `LOG_EVERY` updates."""

    @property
    def updates(self) -> int:
        """Updates in the whole run, a short last window included."""
        return self.epochs * ceil(len(self.batches) / self.window)


def decay_groups(model: nn.Module, weight_decay: float = 0.01) -> list[dict[str, object]]:
    """Split into matrices, which decay, and biases and norms, which do not, as GPT training scripts do."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def adamw(model: nn.Module, *, fused: bool | None = None) -> Optimizer:
    """Build AdamW over the two decay groups; ``fused=None`` is torch's own choice."""
    return torch.optim.AdamW(decay_groups(model), lr=1e-3, fused=fused)


def plain_adamw(model: nn.Module) -> Optimizer:
    """Build AdamW as every tutorial does: one group, torch's own choice of kernel."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def fused_adamw(model: nn.Module) -> Optimizer:
    """Build AdamW whose whole update is one kernel per group."""
    return adamw(model, fused=True)


def cosine(optimizer: Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Build torch's cosine schedule over the whole run."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=updates)


class Journal:
    """Loss, norm and rate of every update, read off the tensors in blocks so that the loop is not held up."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, float, float]] = []
        self.pending: list[tuple[Tensor, Tensor, float]] = []

    def add(self, loss: Tensor, norm: Tensor, rate: float) -> None:
        """Note one update."""
        self.pending.append((loss, norm, rate))
        if len(self.pending) == LOG_EVERY:
            losses = torch.stack([row[0] for row in self.pending]).tolist()
            norms = torch.stack([row[1] for row in self.pending]).tolist()
            self.rows.extend(zip(losses, norms, (row[2] for row in self.pending), strict=True))
            self.pending.clear()
