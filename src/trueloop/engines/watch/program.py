"""What is known of the watched program by now: the facts that one source learns and another one needs."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from trueloop.ground.events import Ref


@dataclass(slots=True)
class Program:
    """Grows while the program runs; keeps nothing of it alive."""

    models: weakref.WeakSet[nn.Module] = field(default_factory=weakref.WeakSet[nn.Module])
    """Outermost modules with parameters that were called."""
    optimizers: weakref.WeakSet[Optimizer] = field(default_factory=weakref.WeakSet[Optimizer])
    """That were built while watching, or have stepped."""
    loader: Ref | None = None
    """The loader that gave the latest batch."""
    batch: int = 0
    """Batches drawn so far, from all loaders."""
    pending: int = 0
    """Backwards since the latest step of any optimizer."""
    in_forward: int = 0
    """Depth of module calls; 0 = outside."""
    in_backward: int = 0
    """Depth of backward; recomputation and reentrant checkpoints run inside."""
    in_step: int = 0
    """Depth of optimizer steps; a closure's forward and backward run inside."""
    scaler: weakref.ref[Any] | None = None
    """The GradScaler that scaled the newest loss, where it is enabled."""
    autocast: str | None = None
    """The type of autocast the newest model call ran under."""
    scaled_loss: weakref.ref[Tensor] | None = None
    """What GradScaler.scale returned last."""
