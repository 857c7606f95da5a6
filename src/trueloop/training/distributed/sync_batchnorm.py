"""Replace BatchNorm by torch's SyncBatchNorm, which normalises over all processes' micro-batches."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage] - their one common base

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.training.distributed.processes import Processes


def convert_sync_batchnorm(model: nn.Module, device: torch.device, processes: Processes) -> list[str]:
    """Replace every BatchNorm layer by one that normalises by the statistics of all processes' micro-batches together.

    Parameters and buffers stay the same objects under the same names. A single process is left unchanged. Padding (see
    `protocols.is_padding`) in an epoch's last window is part of the statistics as well.

    Args:
        model: on its device; modified.
        device: where it runs.
        processes: that share the run.

    Returns:
        The names of the layers replaced.

    Raises:
        InvalidConfig: several processes, on a device that torch's SyncBatchNorm does not support.
        InvalidModel: the model itself is a BatchNorm layer.
    """
    names = [name for name, module in model.named_modules() if _to_replace(module)]
    if processes.size == 1 or not names:
        return []
    if device.type not in ("cuda", "xpu", "hpu"):
        raise InvalidConfig(
            f"parallel.sync_batchnorm is on, and the device is {device.type!r}.",
            why="torch's SyncBatchNorm supports GPUs only.",
            fix="Turn it off: BatchNorm then normalises by each process's own micro-batch. Or train on GPUs.",
        )
    if "" in names:
        raise InvalidModel(
            f"parallel.sync_batchnorm is on, but the model itself is a {type(model).__name__}.",
            why="It would have to be replaced by another module, which would be trained in its place.",
            fix="Put it into an nn.Sequential.",
        )
    nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return names


def _to_replace(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
