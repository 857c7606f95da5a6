"""Train PyTorch models without silent failure.

The names below are imported from `trueloop.api` at first use: ``import trueloop`` alone never imports torch.
"""

from typing import TYPE_CHECKING, Any

from trueloop.version import __version__

if TYPE_CHECKING:
    from trueloop.api import (
        Accuracy,
        CheckpointConfig,
        Confusion,
        Evaluation,
        GuardConfig,
        Loss,
        MeanAbsoluteError,
        MonitorConfig,
        OptimConfig,
        ParallelConfig,
        Parts,
        Recipe,
        ScheduleConfig,
        Shards,
        TrainConfig,
        Trainer,
        TrueloopError,
        autograd,
        evaluate,
        load_weights,
        plan,
        verify,
        watch,
    )

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
    "__version__",
    "autograd",
    "evaluate",
    "load_weights",
    "plan",
    "verify",
    "watch",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "load_ipython_extension":  # what `%load_ext trueloop` looks for
        from trueloop.app.notebook import load_ipython_extension

        return load_ipython_extension
    if name not in __all__:
        raise AttributeError(f"module 'trueloop' has no attribute {name!r}")
    if name == "plan":
        from trueloop.core.arithmetic import plan as arithmetic

        return arithmetic
    try:
        from trueloop import api
    except ModuleNotFoundError as error:
        from trueloop.core.errors import MissingExtra

        raise MissingExtra(error.name or "torch", "train") from error
    return getattr(api, name)
