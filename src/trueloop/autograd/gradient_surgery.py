"""Combines the gradients of several losses into one direction: PCGrad, MGDA, CAGrad.

Each method needs only the inner products of the gradients and returns a weight for each loss. So each is a function of
a matrix of tasks by tasks in float64, and the large vectors are read only twice.
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
ROUNDS: Final = 10_000  # of a search over as many numbers as there are losses: milliseconds
CLOSE: Final = 1e-12  # relative; the search ends where it could gain no more than that


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """A combined gradient, with norms and angles of the losses' gradients."""

    gradients: tuple[Tensor, ...]
    """Combined gradient for each parameter, in the given order."""
    weights: dict[str, float]
    """The direction is the sum of the losses' gradients with these weights."""
    norms: dict[str, float]
    """Norm of each loss's gradient."""
    cosines: dict[tuple[str, str], float]
    """Cosine of the angle between two losses' gradients, each pair once; below 0 they conflict. NaN where a gradient
    is 0."""

    @property
    def conflicts(self) -> tuple[tuple[str, str], ...]:
        """Pairs of losses with conflicting gradients."""
        return tuple(pair for pair, cosine in self.cosines.items() if cosine < 0)

    def assign(self, parameters: Sequence[Tensor]) -> None:
        """Write the direction to ``.grad`` of the same parameters in the same order."""
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
        parameters: that the losses share and that require a gradient. What belongs to one loss alone (its head) is
            better trained by a plain backward.
        method: ``sum`` adds up; ``pcgrad`` takes out of each gradient what goes against another; ``mgda`` is the
            shortest combination with weights that sum to 1, along which no loss rises; ``cagrad`` stays near the mean
            and serves the worst-off loss there.
        closeness: of ``cagrad``, how far from the mean, 0 to below 1 times its length.
        generator: draws the order of the projections of ``pcgrad``; None = torch's default one.
        retain_graph: keep the graph for a backward of your own.

    Raises:
        InvalidConfig: the method is unknown, or the closeness is out of range.
        InvalidData: a loss has no graph, or a parameter requires no gradient.

    Cost: a backward and a gradient in memory for each loss, and one host synchronisation. Gradients are those of this
        process alone: average them over all processes yourself.
    Source: Yu et al., 2020, arXiv:2001.06782 (PCGrad); Désidéri, 2012, doi:10.1016/j.crma.2012.03.014, and Sener and
        Koltun, 2018, arXiv:1810.04650 (MGDA); Liu et al., 2021, arXiv:2110.14048 (CAGrad).
    """
    if method not in METHODS:
        raise InvalidConfig(f"method is {method!r}.", fix=f"Set one of {', '.join(METHODS)}.")
    found = gradients(losses, parameters, retain_graph=retain_graph)
    names, each = list(found), list(found.values())
    inner = torch.stack([torch.stack([_dot(a, b) for b in each]) for a in each]).cpu()
    weights = torch.ones(len(names), dtype=torch.float64)
    if method == "pcgrad":
        weights = project_conflicts(inner, generator)
    elif method == "mgda":
        weights = least_norm(inner)
    elif method == "cagrad":
        weights = worst_case(inner, closeness)
    factors = weights.tolist()
    direction = tuple(
        torch.stack([f * part for f, part in zip(factors, parts, strict=True)]).sum(0)
        for parts in zip(*each, strict=True)
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


def project_conflicts(inner: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Return the weights of PCGrad: each gradient loses its part against each other one, in random order.

    Args:
        inner: inner products of the gradients, [T, T], float64.
        generator: draws the orders; None = torch's default one.

    Returns:
        Weights [T] of the original gradients in the sum of the projected ones.
    """
    tasks = len(inner)
    rows = torch.eye(tasks, dtype=inner.dtype)
    for task, row in enumerate(rows):
        for other in torch.randperm(tasks, generator=generator).tolist():
            against = row @ inner[other]
            if other != task and against < 0:
                row[other] -= against / inner[other, other]
    return rows.sum(0)


def least_norm(inner: Tensor) -> Tensor:
    """Return the weights of MGDA: non-negative, summing to 1, with the shortest combination; 0 of it is a Pareto point.

    Args:
        inner: inner products of the gradients, [T, T], float64.

    Returns:
        Weights [T], exact for two losses; for more the norm's square is within 1e-12 of the least, relative to the
        longest gradient's.
    """
    weights = torch.full((len(inner),), 1 / len(inner), dtype=inner.dtype)
    bound = CLOSE * float(inner.diagonal().max())
    for _ in range(ROUNDS):
        slope = inner @ weights
        best = int(slope.argmin())
        held = torch.where(weights > 0, slope, -torch.inf)
        worst = int(held.argmax())
        gap = float(slope[worst] - slope[best])
        if gap <= bound:
            break
        bend = float(inner[best, best] - 2 * inner[best, worst] + inner[worst, worst])
        moved = min(float(weights[worst]), gap / bend if bend > 0 else 1.0)  # along the line, to its lowest point
        weights[best] += moved
        weights[worst] -= moved
    return weights


def worst_case(inner: Tensor, closeness: float) -> Tensor:
    """Return the weights of CAGrad: the direction within a ball around the mean that helps the worst-off loss most.

    Args:
        inner: inner products of the gradients, [T, T], float64.
        closeness: the ball's radius by the length of the mean, 0 (the mean) to below 1.

    Returns:
        Weights [T].

    Raises:
        InvalidConfig: ``closeness`` is not in [0, 1).
    """
    if not 0 <= closeness < 1:
        raise InvalidConfig(
            f"closeness is {closeness}.",
            why="From 1 on the direction may point anywhere, and the method no longer reaches a minimum of the mean.",
            fix="Set 0 to below 1.",
        )
    tasks = len(inner)
    mean = torch.full((tasks,), 1 / tasks, dtype=inner.dtype)
    radius = closeness * float((mean @ inner @ mean).clamp(min=0).sqrt())
    dual = _search(inner, inner @ mean, radius)
    length = float((dual @ inner @ dual).clamp(min=0).sqrt())
    return mean + dual * (radius / length) if length > 0 else mean


def _search(inner: Tensor, linear: Tensor, radius: float) -> Tensor:
    """Minimise w·linear + radius·|w| over the simplex, |w| by the inner products; convex, by moves between two."""
    weights = torch.full((len(inner),), 1 / len(inner), dtype=inner.dtype)
    bound = CLOSE * float(inner.diagonal().max())
    for _ in range(ROUNDS):
        length = float((weights @ inner @ weights).clamp(min=0).sqrt())
        slope = linear + (radius / length * (inner @ weights) if length > 0 else 0)
        best = int(slope.argmin())
        worst = int(torch.where(weights > 0, slope, -torch.inf).argmax())
        if float(slope[worst] - slope[best]) <= bound:
            break
        moved = _along(inner, linear, radius, weights, (best, worst))
        if moved == 0:
            break
        weights[best] += moved
        weights[worst] -= moved
    return weights


def _along(inner: Tensor, linear: Tensor, radius: float, weights: Tensor, pair: tuple[int, int]) -> float:
    """Return how much weight to move from the second to the first of a pair, by bisection on the slope."""
    best, worst = pair
    turn = torch.zeros_like(weights)
    turn[best], turn[worst] = 1, -1
    low, high = 0.0, float(weights[worst])
    constant, cross, bend = float(turn @ linear), float(turn @ inner @ weights), float(turn @ inner @ turn)
    square = float(weights @ inner @ weights)
    for _ in range(60):
        middle = (low + high) / 2
        length = max(square + 2 * middle * cross + middle * middle * bend, 0.0) ** 0.5
        rises = constant + (radius * (cross + middle * bend) / length if length > 0 else 0.0) > 0
        low, high = (low, middle) if rises else (middle, high)
    return high if high == float(weights[worst]) else low


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Return the inner product over all parameters, added up in float64."""
    return torch.stack([(x * y).sum(dtype=torch.float64) for x, y in zip(a, b, strict=True)]).sum()
