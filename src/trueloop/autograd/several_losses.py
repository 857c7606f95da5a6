"""Several losses: all in one backward, or the gradient of each by itself, without touching ``.grad``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trueloop.core.errors import InvalidConfig, InvalidData

Losses = Mapping[str, Tensor] | Sequence[Tensor]
Weights = Mapping[str, float] | Sequence[float]


def named(losses: Losses) -> dict[str, Tensor]:
    """Return losses by name; of a sequence the names are the places.

    Raises:
        InvalidData: there is none, or one that is not a single number with a graph.
    """
    by_name = dict(losses) if isinstance(losses, Mapping) else {str(place): loss for place, loss in enumerate(losses)}
    if not by_name:
        raise InvalidData("There is no loss.", fix="Give one or more.")
    for name, loss in by_name.items():
        if loss.numel() != 1:
            raise InvalidData(
                f"The loss {name} has the shape {tuple(loss.shape)}.", fix="Reduce it to one number: .mean() or .sum()."
            )
        if not loss.requires_grad:
            raise InvalidData(
                f"The loss {name} has no graph.",
                why="It depends on nothing that is trained, so it would count for nothing.",
                fix="Look for detach(), .item() or no_grad() on its way, or leave it out.",
            )
    return by_name


def backward(losses: Losses, *, weights: Weights | None = None, retain_graph: bool = False) -> None:
    """Run one backward for several losses: ``.grad`` receives what that of their weighted sum would bring.

    What the losses share is gone through once; a backward for each would go through it as often, and need
    ``retain_graph``.

    Args:
        losses: one number each, by name or in a row.
        weights: of each, by the same names or in the same order; None = 1.
        retain_graph: keep the graph for another backward.

    Raises:
        InvalidData: a loss that has no graph, or is not one number.
        InvalidConfig: the weights are not those of the losses.
    """
    by_name = named(losses)
    factors = _in_order(weights, list(by_name))
    tensors = list(by_name.values())
    seeds = [torch.full_like(loss, factor) for loss, factor in zip(tensors, factors, strict=True)]
    torch.autograd.backward(tensors, seeds, retain_graph=retain_graph)


def gradients(
    losses: Losses, parameters: Sequence[Tensor], *, retain_graph: bool = False
) -> dict[str, tuple[Tensor, ...]]:
    """Return the gradient of each loss to each parameter; ``.grad`` is neither read nor changed.

    Args:
        losses: one number each, by name or in a row.
        parameters: that require a gradient.
        retain_graph: keep the graph after the last of them, for a backward of your own.

    Returns:
        For each loss one tensor for each parameter, 0 where the loss does not depend on it.

    Raises:
        InvalidData: a loss that has no graph or is not one number, or a parameter that requires no gradient.

    Cost: one backward for each loss, and memory for a gradient of each. Hooks on ``.grad``, those of
        DistributedDataParallel among them, do not fire: nothing is exchanged between processes.
    """
    by_name = named(losses)
    wanted = list(parameters)
    frozen = [place for place, each in enumerate(wanted) if not each.requires_grad]
    if frozen or not wanted:
        raise InvalidData(
            f"Parameter {frozen[0]} of shape {tuple(wanted[frozen[0]].shape)} requires no gradient."
            if frozen
            else "There is no parameter.",
            fix="Give those that are trained: [p for p in model.parameters() if p.requires_grad].",
        )
    found: dict[str, tuple[Tensor, ...]] = {}
    for place, (name, loss) in enumerate(by_name.items(), start=1):
        keep = retain_graph or place < len(by_name)
        found[name] = torch.autograd.grad(
            loss, wanted, grad_outputs=torch.ones_like(loss), retain_graph=keep, materialize_grads=True
        )
    return found


def _in_order(weights: Weights | None, names: Sequence[str]) -> list[float]:
    if weights is None:
        return [1.0] * len(names)
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise InvalidConfig(
                f"The weights are for {', '.join(sorted(weights))}, the losses are {', '.join(names)}.",
                fix="Give one weight for each loss.",
            )
        return [float(weights[name]) for name in names]
    if len(weights) != len(names):
        raise InvalidConfig(f"There are {len(weights)} weights for {len(names)} losses.", fix="Give one for each.")
    return [float(weight) for weight in weights]
