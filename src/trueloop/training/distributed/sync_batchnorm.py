"""Replace BatchNorm layers by torch's SyncBatchNorm, which normalises over all processes' micro-batches."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - their only common base

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.training.distributed.processes import Processes


def convert_sync_batchnorm(model: nn.Module, device: torch.device, processes: Processes) -> list[str]:
    """Replace every BatchNorm layer by one that normalises by the statistics of all processes' micro-batches together.

    Parameters and buffers stay the same objects with the same names. With a single process, nothing changes. The
    statistics include padding in an epoch's last window (see `protocols.is_padding`).

    Args:
        model: model on its device, to be modified.
        device: device of the model.
        processes: processes that share the run.

    Returns:
        The names of the replaced layers.

    Raises:
        InvalidConfig: there are several processes, and torch's SyncBatchNorm does not support the device.
        InvalidModel: the model itself is a BatchNorm layer.
    """
    names = [name for name, module in model.named_modules() if _is_replaced(module)]
    if processes.size == 1 or not names:
        return []
    if device.type not in ("cuda", "xpu", "hpu"):
        raise InvalidConfig(
            f"parallel.sync_batchnorm is on, but the device is {device.type!r}.",
            why="torch's SyncBatchNorm only supports GPUs.",
            fix="Turn it off, so that each process normalises by its own micro-batch; or train on GPUs.",
        )
    if "" in names:
        raise InvalidModel(
            f"parallel.sync_batchnorm is on, but the model itself is a {type(model).__name__}.",
            why="A module cannot be replaced by another one from outside.",
            fix="Put it into an nn.Sequential.",
        )
    nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return names


def _is_replaced(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
