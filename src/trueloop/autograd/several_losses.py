"""Run one backward pass for several losses, or return the gradient of each loss without changing ``.grad``."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trueloop.core.errors import InvalidConfig, InvalidData

Losses = Mapping[str, Tensor] | Sequence[Tensor]
Weights = Mapping[str, float] | Sequence[float]


def losses_by_name(losses: Losses) -> dict[str, Tensor]:
    """Return losses by name; the names of losses in a sequence are their indices.

    Raises:
        InvalidData: there is no loss, or one is not a scalar with a graph.
    """
    by_name = dict(losses) if isinstance(losses, Mapping) else {str(index): loss for index, loss in enumerate(losses)}
    if not by_name:
        raise InvalidData("There is no loss.", fix="Give at least one loss.")
    for name, loss in by_name.items():
        if loss.numel() != 1:
            raise InvalidData(
                f"The loss {name} has the shape {tuple(loss.shape)}.", fix="Reduce it to one number: .mean() or .sum()."
            )
        if not loss.requires_grad:
            raise InvalidData(
                f"The loss {name} has no graph.",
                why="It does not depend on a trainable parameter, so it would have no effect.",
                fix="Look for detach(), .item() or no_grad() in its computation, or omit it.",
            )
    return by_name


def backward(losses: Losses, *, weights: Weights | None = None, retain_graph: bool = False) -> None:
    """Run one backward pass for several losses: the gradient of their weighted sum is added to ``.grad``.

    Their shared graph is traversed once; separate backward passes would traverse it once per loss.

    Args:
        losses: scalar tensors, by name or as a sequence.
        weights: weight of each loss, by the same names or in the same order; None = 1.
        retain_graph: whether to keep the graph for another backward pass.

    Raises:
        InvalidData: a loss has no graph, or is not a scalar.
        InvalidConfig: the weights do not match the losses.
    """
    by_name = losses_by_name(losses)
    factors = _ordered_weights(weights, list(by_name))
    tensors = list(by_name.values())
    seeds = [torch.full_like(loss, factor) for loss, factor in zip(tensors, factors, strict=True)]
    torch.autograd.backward(tensors, seeds, retain_graph=retain_graph)


def gradients(
    losses: Losses, parameters: Sequence[Tensor], *, retain_graph: bool = False
) -> dict[str, tuple[Tensor, ...]]:
    """Return the gradient of each loss with respect to each parameter, without reading or changing ``.grad``.

    Args:
        losses: scalar tensors, by name or as a sequence.
        parameters: parameters that require a gradient.
        retain_graph: whether to keep the graph for a further backward pass.

    Returns:
        For each loss, one tensor per parameter; zeros if the loss does not depend on the parameter.

    Raises:
        InvalidData: a loss has no graph or is not a scalar, or a parameter requires no gradient.

    Cost: for each loss, a backward pass and memory for a gradient. Hooks on ``.grad`` do not run, including those of
        DistributedDataParallel: gradients are not summed over processes.
    """
    by_name = losses_by_name(losses)
    inputs = list(parameters)
    frozen = [index for index, each in enumerate(inputs) if not each.requires_grad]
    if frozen or not inputs:
        raise InvalidData(
            f"Parameter {frozen[0]} of shape {tuple(inputs[frozen[0]].shape)} requires no gradient."
            if frozen
            else "There is no parameter.",
            fix="Give only trainable parameters: [p for p in model.parameters() if p.requires_grad].",
        )
    results: dict[str, tuple[Tensor, ...]] = {}
    for number, (name, loss) in enumerate(by_name.items(), start=1):
        keep = retain_graph or number < len(by_name)
        results[name] = torch.autograd.grad(
            loss, inputs, grad_outputs=torch.ones_like(loss), retain_graph=keep, materialize_grads=True
        )
    return results


def _ordered_weights(weights: Weights | None, names: Sequence[str]) -> list[float]:
    if weights is None:
        return [1.0] * len(names)
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise InvalidConfig(
                f"The weights are for {', '.join(sorted(weights))}, but the losses are {', '.join(names)}.",
                fix="Give one weight per loss.",
            )
        return [float(weights[name]) for name in names]
    if len(weights) != len(names):
        raise InvalidConfig(f"There are {len(weights)} weights for {len(names)} losses.", fix="Give one per loss.")
    return [float(weight) for weight in weights]
