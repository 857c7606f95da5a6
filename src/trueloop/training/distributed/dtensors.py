"""What of a sharded tensor lies here, and how a whole one is cut alike.

A run that is not sharded has no DTensor, and does not import what they are: that takes as long as half of torch.
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
    """True for a tensor of which every process holds a part."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _is_fsdp(module: nn.Module) -> TypeGuard[FSDPModule]:
    known = sys.modules.get("torch.distributed.fsdp")
    return known is not None and isinstance(module, known.FSDPModule)


def is_sharded(parameters: Sequence[Tensor]) -> bool:
    """True where parameters are DTensors."""
    return any(is_dtensor(parameter) for parameter in parameters)


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that lies here; a plain tensor whole."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def shard_like(live: Tensor, value: Any) -> Any:
    """Cut a whole tensor as a live one of that shape is cut; anything else is returned as it is. Talks to nobody."""
    whole = isinstance(value, Tensor) and not is_dtensor(value)
    if not is_dtensor(live) or not whole or value.shape != live.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = live.device_mesh, live.placements
    return distribute_tensor(value.to(live.device), mesh, placements, src_data_rank=None)


def from_local_part(live: Tensor, part: Tensor) -> Tensor:
    """Return the tensor of which ``part`` is what lies here, cut as the live one; where that is whole, the part."""
    if not is_dtensor(live):
        return part
    mesh, placements = live.device_mesh, live.placements
    return type(live).from_local(part, mesh, placements, run_check=False, shape=live.shape, stride=live.stride())


def shard_state_like(live: Mapping[str, Tensor], values: Mapping[str, Any]) -> dict[str, Any]:
    """Cut whole tensors as the live ones of these names are cut."""
    return {name: shard_like(live[name], value) if name in live else value for name, value in values.items()}


def shard_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Cut an optimizer's saved moments as its parameters are cut."""
    live = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not is_sharded(live):
        return state
    names = [name for group in state["param_groups"] for name in group["params"]]
    by_name = dict(zip(names, live, strict=False))  # what does not fit is the optimizer's own to refuse
    cut = {
        name: {key: shard_like(by_name[name], value) for key, value in moments.items()} if name in by_name else moments
        for name, moments in state["state"].items()
    }
    return {**state, "state": cut}


def memory_key(tensor: Tensor) -> tuple[int, ...]:
    """Return what two names of one tied tensor have in common; an empty tensor has no memory to share."""
    here = local_part(tensor.detach())
    # Of a sharded parameter, FSDP pads the part that lies here: it has memory even where it holds nothing.
    start = here.untyped_storage().data_ptr() if is_dtensor(tensor) else here.data_ptr()
    return (start or id(tensor), *tensor.shape, *tensor.stride())


def reshard(model: nn.Module) -> None:
    """Drop what was gathered of a sharded model, because the parts are about to change outside of training.

    The root stays gathered after an evaluation, and the next forward pass would take it for the weights.
    """
    for module in model.modules():
        if _is_fsdp(module):
            module.reshard()


def describe_layers(model: nn.Module) -> str:
    """Return the model's layers and their arguments, as `repr` shows them before it is sharded."""
    text = repr(model)
    for name in {type(module).__name__ for module in model.modules() if _is_fsdp(module)}:
        text = re.sub(rf"\b{re.escape(name)}\(", f"{name.removeprefix('FSDP')}(", text)
    return text
