"""Reads the gradients of parameters: their versions, their norms, and their dense values."""

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from trueloop.tracing.events import Ref

Version = int | tuple[int, int]
"""Version of a gradient, which every change in place raises; see `version_of`."""
Snapshot = tuple[weakref.ref[Tensor], Version]
"""A gradient and its version."""
_PLAIN: Final = {Tensor}


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters of an optimizer."""
    groups = optimizer.param_groups
    if len(groups) == 1:
        return list(groups[0]["params"])
    return [parameter for group in groups for parameter in group["params"]]


def version_of(gradient: Tensor) -> Version:
    """Return the version of a gradient, with that of its local shard, since FSDP2 accumulates into the shard."""
    version: int = gradient._version  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if type(gradient) is Tensor:
        return version
    local: Any = getattr(gradient, "_local_tensor", None)
    return version, -1 if local is None else local._version  # noqa: SLF001


def gradient_norms(gradients: Sequence[Tensor]) -> list[float] | None:
    """Return the norm of each gradient, in order; None unless all of them are dense real tensors on the CPU."""
    if not gradients:
        return None
    local = gradients
    if set(map(type, gradients)) != _PLAIN or not gradients[0].is_cpu or gradients[0].is_complex():
        local = [plain for gradient in gradients if (plain := local_shard(gradient)) is not None]
        if len(local) < len(gradients) or not all(plain.is_cpu and not plain.is_complex() for plain in local):
            return None
    try:
        norms = torch.stack([torch.linalg.vector_norm(each) for each in local])  # quicker than _foreach_norm for few
    except (NotImplementedError, RuntimeError):  # some gradient is sparse, or on another device
        return None
    return norms.tolist() if norms.is_cpu else None


def local_shard(gradient: Tensor | None) -> Tensor | None:
    """Return the dense values of a gradient in this process; None if it is sparse or of an unknown class."""
    local = gradient if type(gradient) is Tensor else getattr(gradient, "_local_tensor", gradient)
    if type(local) is not Tensor or local.layout is not torch.strided or local.is_meta:
        return None
    return local.detach() if local.requires_grad else local


def snapshot(gradient: Tensor) -> Snapshot:
    """Return a weak reference to a gradient, and its version."""
    return weakref.ref(gradient), version_of(gradient)


def snapshots(parameters: Mapping[Ref, Tensor]) -> dict[Ref, Snapshot]:
    """Return a snapshot of the gradient of each parameter that has one. Cost: 0.3 us for each."""
    return {
        ref: (weakref.ref(gradient), gradient._version if type(gradient) is Tensor else version_of(gradient))  # noqa: SLF001
        for ref, parameter in parameters.items()
        if (gradient := parameter.grad) is not None
    }


def is_unchanged(parameter: Tensor, snapshot: Snapshot) -> bool:
    """Return True if the gradient of a parameter is the same object in the same version as in a snapshot."""
    gradient = parameter.grad
    return gradient is not None and snapshot[0]() is gradient and snapshot[1] == version_of(gradient)


def l1_norms(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the L1 norm of each gradient or of its local shard, as a tensor; None if it has no dense values."""
    local = [local_shard(gradient) for gradient in gradients]
    dense = [gradient for gradient in local if gradient is not None]
    norms = iter(torch._foreach_norm(dense, 1) if dense else ())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    return [None if gradient is None else next(norms) for gradient in local]
