"""PCGrad, MGDA and CAGrad where the answer is known by hand, and their laws on drawn gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trueloop.autograd.gradient_surgery import METHODS, combine, least_norm, project_conflicts, worst_case
from trueloop.core.errors import InvalidConfig


def products(*rows: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    vectors = torch.tensor(rows, dtype=torch.float64)
    return vectors, vectors @ vectors.T


def drawn(tasks: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    vectors = torch.randn(tasks, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return vectors, vectors @ vectors.T


def linear(vectors: Tensor, point: Tensor) -> list[Tensor]:
    """Losses whose gradients are these vectors."""
    return [(vector * point).sum() for vector in vectors]


def test_pcgrad_of_two_by_hand():
    vectors, inner = products((1.0, 0.0), (-1.0, 1.0))
    # (1, 0) loses its part along (-1, 1): (1/2, 1/2); that loses its part along (1, 0): (0, 1).
    torch.testing.assert_close(project_conflicts(inner) @ vectors, torch.tensor([0.5, 1.5], dtype=torch.float64))


def test_pcgrad_leaves_alone_what_does_not_conflict():
    _vectors, inner = products((1.0, 0.0), (1.0, 1.0), (0.0, 2.0))
    assert project_conflicts(inner).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("seed", range(5))
def test_pcgrad_is_that_of_the_paper_in_the_same_order(seed: int):
    vectors, inner = drawn(4, 6, seed)
    order = torch.Generator().manual_seed(seed)
    made: list[Tensor] = []
    for task in range(4):
        vector = vectors[task].clone()
        for other in torch.randperm(4, generator=order).tolist():
            if other != task and vector @ vectors[other] < 0:
                vector -= (vector @ vectors[other]) / vectors[other].square().sum() * vectors[other]
        made.append(vector)
    ours = project_conflicts(inner, torch.Generator().manual_seed(seed)) @ vectors
    torch.testing.assert_close(ours, torch.stack(made).sum(0))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (((1.0, 0.0), (0.0, 1.0)), [0.5, 0.5]),
        (((2.0, 0.0), (0.0, 1.0)), [0.2, 0.8]),  # (b - a)·b / |a - b|² of the first
        (((1.0, 0.0), (3.0, 0.5)), [1.0, 0.0]),  # the shorter one alone
        (((1.0, 0.0), (-3.0, 0.0)), [0.75, 0.25]),  # against each other: a Pareto point
        (((1.0, 0.0), (1.0, 0.0)), [0.5, 0.5]),
    ],
)
def test_mgda_of_two_by_hand(rows: tuple[tuple[float, ...], ...], expected: list[float]):
    _vectors, inner = products(*rows)
    torch.testing.assert_close(least_norm(inner), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("tasks", "size"), [(3, 2), (4, 10), (7, 3), (6, 100)])
def test_mgda_helps_every_loss_and_is_the_shortest(seed: int, tasks: int, size: int):
    vectors, inner = drawn(tasks, size, seed)
    weights = least_norm(inner)
    direction = weights @ vectors
    assert weights.min() >= 0
    assert weights.sum().item() == pytest.approx(1)
    # What makes it the shortest, and what it is wanted for: g·d >= |d|² for every gradient g.
    assert (vectors @ direction).min() >= direction.square().sum() - 1e-9


def test_cagrad_of_two_orthogonal_ones_is_along_their_mean():
    vectors, inner = products((1.0, 0.0), (0.0, 1.0))
    torch.testing.assert_close(worst_case(inner, 0.5) @ vectors, torch.full((2,), 0.75, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("closeness", [0.0, 0.3, 0.9])
def test_cagrad_is_in_the_ball_and_no_other_direction_there_is_better(seed: int, closeness: float):
    vectors, inner = drawn(4, 3, seed)
    direction, mean = worst_case(inner, closeness) @ vectors, vectors.mean(0)
    radius = closeness * mean.norm()
    torch.testing.assert_close((direction - mean).norm(), radius)
    worst = (vectors @ direction).min()
    assert worst >= (vectors @ mean).min() - 1e-9
    around = torch.randn(20_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    others = mean + radius * around / around.norm(dim=1, keepdim=True)
    assert (others @ vectors.T).min(dim=1).values.max() <= worst + 1e-7


def test_cagrad_takes_a_closeness_below_one():
    with pytest.raises(InvalidConfig, match="closeness is 1"):
        worst_case(torch.eye(2, dtype=torch.float64), 1)


@pytest.mark.parametrize("method", METHODS)
def test_from_losses_to_grad(method: str):
    vectors, inner = products((1.0, 0.0, 2.0), (-1.0, 1.0, 0.0))
    first, second = torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    parameters = [first.requires_grad_(), second.requires_grad_()]
    a, b = linear(vectors, torch.cat(parameters))
    made = combine({"a": a, "b": b}, parameters, method=method)
    weights = torch.tensor([made.weights["a"], made.weights["b"]], dtype=torch.float64)
    expected = {
        "sum": torch.ones(2),
        "pcgrad": project_conflicts(inner),
        "mgda": least_norm(inner),
        "cagrad": worst_case(inner, 0.4),
    }[method]
    torch.testing.assert_close(weights, expected.double())
    assert first.grad is None
    made.assign(parameters)
    torch.testing.assert_close(torch.cat([first.grad, second.grad]), weights @ vectors)
    assert made.norms == {"a": pytest.approx(math.sqrt(5)), "b": pytest.approx(math.sqrt(2))}
    assert made.cosines == {("a", "b"): pytest.approx(-1 / math.sqrt(10))}
    assert made.conflicts == (("a", "b"),)


@pytest.mark.parametrize("method", METHODS)
def test_one_loss_is_its_own_gradient_and_zero_is_no_nan(method: str):
    point = torch.ones(2, requires_grad=True)
    alone = combine([point.square().sum()], [point], method=method)
    factor = 1.4 if method == "cagrad" else 1.0  # its ball reaches further along the only gradient
    torch.testing.assert_close(alone.gradients[0], torch.full((2,), 2.0) * factor)
    flat = combine([point.sum() * 0, point.sum() * 0], [point], method=method)
    assert torch.equal(flat.gradients[0], torch.zeros(2))


def test_two_tasks_are_trained_to_a_point_where_neither_can_gain():
    point = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        losses = [(point - torch.tensor([1.0, 0.0])).square().sum(), (point + torch.tensor([1.0, 0.0])).square().sum()]
        combine(losses, [point], method="mgda").assign([point])
        with torch.no_grad():
            point -= 0.1 * point.grad
    assert abs(point[1].item()) < 1e-6
    assert abs(point[0].item()) < 1 + 1e-9


def test_a_method_that_there_is_not():
    with pytest.raises(InvalidConfig, match="method is 'pcgard'"):
        combine([torch.ones(1, requires_grad=True).sum()], [], method="pcgard")
