"""What `import trueloop` offers; imported at first use, so that the core works without torch."""

from typing import Any

from torch import nn

from trueloop import autograd, verify
from trueloop.app.sanitizer.watch import watch
from trueloop.app.training.data_feed import evaluation_batches
from trueloop.app.training.trainer import Trainer
from trueloop.core.arithmetic import plan
from trueloop.core.errors import TrueloopError
from trueloop.data import Shards
from trueloop.recipes.recipe import Parts, Recipe
from trueloop.training.checkpoint.weights import load_weights
from trueloop.training.config import (
    CheckpointConfig,
    GuardConfig,
    MonitorConfig,
    OptimConfig,
    ParallelConfig,
    ScheduleConfig,
    TrainConfig,
)
from trueloop.training.evaluation.evaluate import Evaluation, MetricFactories
from trueloop.training.evaluation.evaluate import evaluate as evaluate_batches
from trueloop.training.evaluation.metrics import Accuracy, Confusion, MeanAbsoluteError
from trueloop.training.objective import Loss

__all__ = [
    "Accuracy",
    "CheckpointConfig",
    "Confusion",
    "Evaluation",
    "GuardConfig",
    "Loss",
    "MeanAbsoluteError",
    "MonitorConfig",
    "OptimConfig",
    "ParallelConfig",
    "Parts",
    "Recipe",
    "ScheduleConfig",
    "Shards",
    "TrainConfig",
    "Trainer",
    "TrueloopError",
    "autograd",
    "evaluate",
    "load_weights",
    "plan",
    "verify",
    "watch",
]


def evaluate(
    model: nn.Module,
    data: Any,
    objective: Any,
    *,
    metrics: MetricFactories | None = None,
    batch: int = 256,
    collate: Any = None,
) -> Evaluation:
    """Return a model's mean loss and metrics, measured in eval mode without gradients; all modes are restored.

    Args:
        model: the model, on any device; the batches are moved to that device.
        data: a map-style dataset, or an iterable of ready batches.
        objective: a ``torch.nn`` loss over ``(inputs, target)`` batches, or a function as for `Trainer`.
        metrics: name -> factory, such as ``{"accuracy": Accuracy}``.
        batch: number of examples per forward pass, for a dataset; it does not change the result.
        collate: function from a list of samples to a batch, for a dataset.

    Raises:
        InvalidData: there is nothing to evaluate on.
        InvalidModel: metrics are requested, but the objective does not return the output and the target.

    Example:
        >>> import torch
        >>> from trueloop import evaluate
        >>> data = torch.utils.data.TensorDataset(torch.ones(5, 1), torch.zeros(5, 1))
        >>> evaluate(torch.nn.Identity(), data, torch.nn.MSELoss(), batch=2).metrics
        {'loss': 1.0}
    """
    return evaluate_batches(model, evaluation_batches(data, batch=batch, collate=collate), objective, metrics=metrics)
