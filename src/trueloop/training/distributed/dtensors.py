"""Read and create sharded tensors (DTensor), importing torch.distributed.tensor only in a sharded run.

Importing that module takes half as long as importing torch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Return True for a tensor of which every process holds a part."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _is_fsdp(module: nn.Module) -> TypeGuard[FSDPModule]:
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def is_sharded(parameters: Sequence[Tensor]) -> bool:
    """Return True if any parameter is a DTensor."""
    return any(is_dtensor(parameter) for parameter in parameters)


def local_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a DTensor; return a plain tensor unchanged."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def shard_like(like: Tensor, value: Any) -> Any:
    """Shard a full tensor like the DTensor ``like`` of the same shape; return any other value unchanged."""
    is_full = isinstance(value, Tensor) and not is_dtensor(value)
    if not is_dtensor(like) or not is_full or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements
    return distribute_tensor(value.to(like.device), mesh, placements, src_data_rank=None)


def from_local_part(like: Tensor, part: Tensor) -> Tensor:
    """Return the DTensor with this local part, sharded like ``like``; if ``like`` is plain, return the part."""
    if not is_dtensor(like):
        return part
    mesh, placements = like.device_mesh, like.placements
    return type(like).from_local(part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def shard_state_like(like: Mapping[str, Tensor], values: Mapping[str, Any]) -> dict[str, Any]:
    """Shard each full tensor like the tensor of the same name in ``like``."""
    return {name: shard_like(like[name], value) if name in like else value for name, value in values.items()}


def shard_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Shard an optimizer's saved moments like its parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not is_sharded(parameters):
        return state
    names = [name for group in state["param_groups"] for name in group["params"]]
    by_name = dict(zip(names, parameters, strict=False))  # a mismatch is reported by the optimizer
    sharded = {
        name: {key: shard_like(by_name[name], value) for key, value in moments.items()} if name in by_name else moments
        for name, moments in state["state"].items()
    }
    return {**state, "state": sharded}


def memory_key(tensor: Tensor) -> tuple[int, ...]:
    """Return a key that is equal for all names of a tied tensor."""
    part = local_part(tensor.detach())
    # FSDP pads the local part of a sharded parameter, so even an empty part has memory.
    start = part.untyped_storage().data_ptr() if is_dtensor(tensor) else part.data_ptr()
    return (start or id(tensor), *tensor.shape, *tensor.stride())


def reshard(model: nn.Module) -> None:
    """Free the gathered parameters of a sharded model, because its parts will change outside of training.

    After an evaluation the root is still gathered, and the next forward pass would use the old parameters.
    """
    for module in model.modules():
        if _is_fsdp(module):
            module.reshard()


def describe_layers(model: nn.Module) -> str:
    """Return the `repr` of the model, with the class names from before sharding."""
    text = repr(model)
    for name in {type(module).__name__ for module in model.modules() if _is_fsdp(module)}:
        text = re.sub(rf"\b{re.escape(name)}\(", f"{name.removeprefix('FSDP')}(", text)
    return text
