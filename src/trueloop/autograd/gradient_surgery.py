"""Combine the gradients of several losses into one direction: PCGrad, MGDA, CAGrad.

Each method computes a weight per loss from the inner products of the gradients, a [losses, losses] matrix in float64,
so the large gradients are read only twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from trueloop.autograd.several_losses import Losses, gradients
from trueloop.core.errors import InvalidConfig

Method = Literal["sum", "pcgrad", "mgda", "cagrad"]
METHODS: Final = ("sum", "pcgrad", "mgda", "cagrad")
MAX_STEPS: Final = 10_000  # largest number of steps of a search for the weights; they take milliseconds
TOLERANCE: Final = 1e-12  # the search ends when another step could gain at most this, relative to the largest square


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """A combined gradient, with norms and angles of the losses' gradients."""

    gradients: tuple[Tensor, ...]
    """Combined gradient of each parameter, in the order of the parameters."""
    weights: dict[str, float]
    """Weight of each loss's gradient in the combined one."""
    norms: dict[str, float]
    """Norm of each loss's gradient."""
    cosines: dict[tuple[str, str], float]
    """Cosine of the angle between the gradients of two losses, each pair once; if negative, they conflict. NaN if a
    gradient is 0."""

    @property
    def conflicts(self) -> tuple[tuple[str, str], ...]:
        """Pairs of losses with conflicting gradients."""
        return tuple(pair for pair, cosine in self.cosines.items() if cosine < 0)

    def assign(self, parameters: Sequence[Tensor]) -> None:
        """Write the combined gradients to ``.grad`` of the parameters that `combine` was called with."""
        for parameter, gradient in zip(parameters, self.gradients, strict=True):
            parameter.grad = gradient


def combine(
    losses: Losses,
    parameters: Sequence[Tensor],
    *,
    method: Method = "pcgrad",
    closeness: float = 0.4,
    generator: torch.Generator | None = None,
    retain_graph: bool = False,
) -> Combined:
    """Combine the gradients of several losses that share parameters.

    Args:
        losses: scalar tensors, by name or as a sequence.
        parameters: parameters that the losses share and that require a gradient. Train the parameters of a single loss
            (its head) with an ordinary backward pass instead.
        method: ``sum`` adds the gradients; ``pcgrad`` removes from each gradient the part that conflicts with another;
            ``mgda`` returns the shortest combination with weights that sum to 1, along which no loss rises; ``cagrad``
            returns the direction near the mean that improves the least improved loss most.
        closeness: for ``cagrad``, the largest distance from the mean as a multiple of its length, in [0, 1).
        generator: generator for the order of the projections of ``pcgrad``; None = torch's default generator.
        retain_graph: whether to keep the graph for a further backward pass.

    Raises:
        InvalidConfig: the method is unknown, or the closeness is out of range.
        InvalidData: a loss has no graph, or a parameter requires no gradient.

    Cost: for each loss, a backward pass and memory for a gradient; waits for the GPU once. The gradients are those of
        this process: average them over all processes yourself.
    Source: Yu et al., 2020, arXiv:2001.06782 (PCGrad); Désidéri, 2012, doi:10.1016/j.crma.2012.03.014, and Sener and
        Koltun, 2018, arXiv:1810.04650 (MGDA); Liu et al., 2021, arXiv:2110.14048 (CAGrad).
    """
    if method not in METHODS:
        raise InvalidConfig(f"method is {method!r}.", fix=f"Set one of {', '.join(METHODS)}.")
    by_loss = gradients(losses, parameters, retain_graph=retain_graph)
    names, all_gradients = list(by_loss), list(by_loss.values())
    inner = torch.stack([torch.stack([_dot(a, b) for b in all_gradients]) for a in all_gradients]).cpu()
    weights = torch.ones(len(names), dtype=torch.float64)
    if method == "pcgrad":
        weights = pcgrad_weights(inner, generator)
    elif method == "mgda":
        weights = mgda_weights(inner)
    elif method == "cagrad":
        weights = cagrad_weights(inner, closeness)
    factors = weights.tolist()
    direction = tuple(
        torch.stack([f * part for f, part in zip(factors, parts, strict=True)]).sum(0)
        for parts in zip(*all_gradients, strict=True)
    )
    norms = inner.diagonal().sqrt()
    cosines = inner / norms / norms[:, None]
    return Combined(
        gradients=direction,
        weights=dict(zip(names, factors, strict=True)),
        norms=dict(zip(names, norms.tolist(), strict=True)),
        cosines={
            (a, b): float(cosines[i, j]) for i, a in enumerate(names) for j, b in enumerate(names[i + 1 :], start=i + 1)
        },
    )


def pcgrad_weights(inner: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return the weights of PCGrad: from each gradient, remove the parts that conflict with others, in random order.

    Args:
        inner: inner products of the gradients, [T, T], float64.
        generator: generator for the orders; None = torch's default generator.

    Returns:
        Weights [T] of the original gradients in the sum of the projected ones.
    """
    tasks = len(inner)
    rows = torch.eye(tasks, dtype=inner.dtype)
    for task, row in enumerate(rows):
        for other in torch.randperm(tasks, generator=generator).tolist():
            product = row @ inner[other]
            if other != task and product < 0:
                row[other] -= product / inner[other, other]
    return rows.sum(0)


def mgda_weights(inner: Tensor) -> Tensor:
    """Return the weights of MGDA: non-negative, with sum 1 and the shortest combination (0 at a Pareto point).

    Args:
        inner: inner products of the gradients, [T, T], float64.

    Returns:
        Weights [T]. They are exact for two losses; for more, the squared norm exceeds the minimum by at most 1e-12
        times the largest squared norm of a gradient.
    """
    weights = torch.full((len(inner),), 1 / len(inner), dtype=inner.dtype)
    bound = TOLERANCE * float(inner.diagonal().max())
    for _ in range(MAX_STEPS):
        slope = inner @ weights
        best = int(slope.argmin())
        worst = int(torch.where(weights > 0, slope, -torch.inf).argmax())
        gap = float(slope[worst] - slope[best])
        if gap <= bound:
            break
        curvature = float(inner[best, best] - 2 * inner[best, worst] + inner[worst, worst])
        shift = min(float(weights[worst]), gap / curvature if curvature > 0 else 1.0)  # to the minimum on the line
        weights[best] += shift
        weights[worst] -= shift
    return weights


def cagrad_weights(inner: Tensor, closeness: float) -> Tensor:
    """Return the weights of CAGrad: in a ball around the mean, the direction that most improves the worst loss.

    Args:
        inner: inner products of the gradients, [T, T], float64.
        closeness: radius of the ball as a multiple of the mean's length, in [0, 1); 0 returns the mean.

    Returns:
        Weights [T].

    Raises:
        InvalidConfig: ``closeness`` is not in [0, 1).
    """
    if not 0 <= closeness < 1:
        raise InvalidConfig(
            f"closeness is {closeness}.",
            why="With 1 or more, every direction is allowed, and the mean loss no longer reaches a minimum.",
            fix="Set a number in [0, 1).",
        )
    tasks = len(inner)
    mean = torch.full((tasks,), 1 / tasks, dtype=inner.dtype)
    radius = closeness * float((mean @ inner @ mean).clamp(min=0).sqrt())
    dual = _minimise(inner, inner @ mean, radius)
    length = float((dual @ inner @ dual).clamp(min=0).sqrt())
    return mean + dual * (radius / length) if length > 0 else mean


def _minimise(inner: Tensor, linear: Tensor, radius: float) -> Tensor:
    """Minimise w·linear + radius·|w|, with |w| from ``inner``, over the simplex by moving weight between pairs."""
    weights = torch.full((len(inner),), 1 / len(inner), dtype=inner.dtype)
    bound = TOLERANCE * float(inner.diagonal().max())
    for _ in range(MAX_STEPS):
        length = float((weights @ inner @ weights).clamp(min=0).sqrt())
        slope = linear + (radius / length * (inner @ weights) if length > 0 else 0)
        best = int(slope.argmin())
        worst = int(torch.where(weights > 0, slope, -torch.inf).argmax())
        if float(slope[worst] - slope[best]) <= bound:
            break
        shift = _bisect_shift(inner, linear, radius, weights, best=best, worst=worst)
        if shift == 0:
            break
        weights[best] += shift
        weights[worst] -= shift
    return weights


def _bisect_shift(inner: Tensor, linear: Tensor, radius: float, weights: Tensor, *, best: int, worst: int) -> float:
    """Return how much weight to move from the worst to the best task, by bisection on the slope."""
    move = torch.zeros_like(weights)
    move[best], move[worst] = 1, -1
    low, high = 0.0, float(weights[worst])
    constant, cross, curvature = float(move @ linear), float(move @ inner @ weights), float(move @ inner @ move)
    square = float(weights @ inner @ weights)
    for _ in range(60):
        middle = (low + high) / 2
        length = max(square + 2 * middle * cross + middle * middle * curvature, 0.0) ** 0.5
        rises = constant + (radius * (cross + middle * curvature) / length if length > 0 else 0.0) > 0
        low, high = (low, middle) if rises else (middle, high)
    return high if high == float(weights[worst]) else low


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Return the inner product over all parameters, added up in float64."""
    return torch.stack([(x * y).sum(dtype=torch.float64) for x, y in zip(a, b, strict=True)]).sum()
