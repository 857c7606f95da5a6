"""GradNorm: learned weights of several losses, so that all of them fall at a similar rate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueloop.autograd.several_losses import Losses, gradients, losses_by_name
from trueloop.core.errors import CheckpointError, InvalidConfig, InvalidData


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Weights and gradient norms of the losses at one update."""

    weights: dict[str, float]
    """Weights of the losses for this update; they sum to the number of losses."""
    norms: dict[str, float]
    """Gradient norm of each weighted loss with respect to the shared parameters, before the weights changed."""
    targets: dict[str, float]
    """Target values of these norms."""


class GradNorm:
    """Balances losses by the norms of their gradients.

    A loss that has fallen less than the others, relative to its initial value, gets a larger gradient.
    Call `balance` at every update with the unweighted losses, then run backward with the weights that it returns::

        balance = gradnorm.balance(losses, list(model.body[-1].parameters()))
        trueloop.autograd.backward(losses, weights=balance.weights)

    Args:
        alpha: how much larger the gradients of slower losses become; 0 makes all norms equal.
        rate: learning rate of the weights, above 0.

    Raises:
        InvalidConfig: ``alpha`` is negative, or ``rate`` is not above 0.

    Source: Chen et al., 2018, arXiv:1711.02257. The weights take plain gradient steps, and stay above 0.
    """

    def __init__(self, *, alpha: float = 1.5, rate: float = 0.025) -> None:
        if not 0 <= alpha < math.inf:
            raise InvalidConfig(f"alpha is {alpha}.", fix="Set 0 or more; the paper uses 0.5 to 3.")
        if not 0 < rate < math.inf:
            raise InvalidConfig(f"rate is {rate}.", fix="Set a number above 0.")
        self.alpha, self.rate = alpha, rate
        self._weights: dict[str, float] = {}
        self._initial: dict[str, float] = {}

    def balance(self, losses: Losses, shared: Sequence[Tensor]) -> Balance:
        """Return the weights for this update; the graph is kept for the backward pass that follows.

        Args:
            losses: unweighted losses, one positive number each, by name or as a sequence; the same ones in every call.
            shared: parameters on which all losses depend; those of the last shared layer are enough.

        Raises:
            InvalidData: the losses are not those of the first call, a loss is not above 0, or the gradients are all 0
                or not finite.

        Cost: for each loss, a backward pass down to ``shared``, after which it waits for the GPU.
        """
        grads = gradients(losses, shared, retain_graph=True)
        values = {name: float(loss.detach()) for name, loss in losses_by_name(losses).items()}
        self._check_losses(values)
        unscaled = {name: float(torch.stack([(g * g).sum() for g in gs]).sum().sqrt()) for name, gs in grads.items()}
        norms = {name: self._weights[name] * norm for name, norm in unscaled.items()}
        mean = sum(norms.values()) / len(norms)
        if not 0 < mean < math.inf:
            raise InvalidData(
                f"The mean of the gradients' norms is {mean}: {norms}.",
                why="Weights cannot be computed from this.",
                fix="Give parameters that the losses share, and look for a loss that is not finite.",
            )
        ratios = {name: value / self._initial[name] for name, value in values.items()}
        mean_ratio = sum(ratios.values()) / len(ratios)
        targets = {name: mean * (ratio / mean_ratio) ** self.alpha for name, ratio in ratios.items()}
        self._descend(unscaled, norms, targets)
        return Balance(weights=dict(self._weights), norms=norms, targets=targets)

    def _check_losses(self, values: Mapping[str, float]) -> None:
        invalid = {name: value for name, value in values.items() if not 0 < value < math.inf}
        if invalid:
            raise InvalidData(
                f"Some losses are not above 0: {invalid}.",
                why="GradNorm compares each loss with its first value, by division.",
                fix="Subtract the loss's lower bound, or leave the loss out and give it a weight of your own.",
            )
        if not self._initial:
            self._initial, self._weights = dict(values), dict.fromkeys(values, 1.0)
        if set(values) != set(self._initial):
            raise InvalidData(
                f"The losses are {', '.join(values)}, but in the first call they were {', '.join(self._initial)}.",
                fix="Give the same losses in every call, or create a new GradNorm.",
            )

    def _descend(self, unscaled: Mapping[str, float], norms: Mapping[str, float], targets: Mapping[str, float]) -> None:
        """Take a gradient step on sum |norm - target|, then scale the weights to sum to their number."""
        new_weights: dict[str, float] = {}
        for name, weight in self._weights.items():
            difference = norms[name] - targets[name]
            slope = math.copysign(unscaled[name], difference) if difference else 0.0
            new_weights[name] = max(weight - self.rate * slope, 1e-3 * weight)  # a weight of 0 would stay 0
        total = sum(new_weights.values())
        self._weights = {name: weight * len(new_weights) / total for name, weight in new_weights.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and initial losses, JSON-ready."""
        return {"weights": dict(self._weights), "initial": dict(self._initial)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`.

        Raises:
            CheckpointError: ``state`` is not that of a GradNorm.
        """
        if set(state) != {"weights", "initial"} or set(state["weights"]) != set(state["initial"]):
            raise CheckpointError(
                f"This is not the state of a GradNorm: {sorted(map(str, state))}.",
                fix="Load what its state_dict() returned.",
            )
        self._weights, self._initial = dict(state["weights"]), dict(state["initial"])
