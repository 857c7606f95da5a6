"""PCGrad, MGDA and CAGrad: results computed by hand, and properties for random gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trueloop.autograd.gradient_surgery import METHODS, cagrad_weights, combine, mgda_weights, pcgrad_weights
from trueloop.core.errors import InvalidConfig


def products(*rows: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    vectors = torch.tensor(rows, dtype=torch.float64)
    return vectors, vectors @ vectors.T


def random_gradients(tasks: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    vectors = torch.randn(tasks, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return vectors, vectors @ vectors.T


def linear_losses(vectors: Tensor, point: Tensor) -> list[Tensor]:
    """Losses whose gradients are these vectors."""
    return [(vector * point).sum() for vector in vectors]


def test_pcgrad_of_two_losses_computed_by_hand():
    vectors, inner = products((1.0, 0.0), (-1.0, 1.0))
    # (1, 0) loses its part along (-1, 1): (1/2, 1/2); that loses its part along (1, 0): (0, 1).
    torch.testing.assert_close(pcgrad_weights(inner) @ vectors, torch.tensor([0.5, 1.5], dtype=torch.float64))


def test_pcgrad_does_not_change_gradients_without_conflict():
    _vectors, inner = products((1.0, 0.0), (1.0, 1.0), (0.0, 2.0))
    assert pcgrad_weights(inner).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("seed", range(5))
def test_pcgrad_equals_the_algorithm_of_the_paper(seed: int):
    vectors, inner = random_gradients(4, 6, seed)
    order = torch.Generator().manual_seed(seed)
    result: list[Tensor] = []
    for task in range(4):
        vector = vectors[task].clone()
        for other in torch.randperm(4, generator=order).tolist():
            if other != task and vector @ vectors[other] < 0:
                vector -= (vector @ vectors[other]) / vectors[other].square().sum() * vectors[other]
        result.append(vector)
    actual = pcgrad_weights(inner, torch.Generator().manual_seed(seed)) @ vectors
    torch.testing.assert_close(actual, torch.stack(result).sum(0))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (((1.0, 0.0), (0.0, 1.0)), [0.5, 0.5]),
        (((2.0, 0.0), (0.0, 1.0)), [0.2, 0.8]),  # (b - a)·b / |a - b|² of the first
        (((1.0, 0.0), (3.0, 0.5)), [1.0, 0.0]),  # only the shorter gradient
        (((1.0, 0.0), (-3.0, 0.0)), [0.75, 0.25]),  # opposite gradients: a Pareto point
        (((1.0, 0.0), (1.0, 0.0)), [0.5, 0.5]),
    ],
)
def test_mgda_of_two_losses_computed_by_hand(rows: tuple[tuple[float, ...], ...], expected: list[float]):
    _vectors, inner = products(*rows)
    torch.testing.assert_close(mgda_weights(inner), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("tasks", "size"), [(3, 2), (4, 10), (7, 3), (6, 100)])
def test_mgda_is_the_shortest_combination_and_improves_every_loss(seed: int, tasks: int, size: int):
    vectors, inner = random_gradients(tasks, size, seed)
    weights = mgda_weights(inner)
    direction = weights @ vectors
    assert weights.min() >= 0
    assert weights.sum().item() == pytest.approx(1)
    # The shortest combination d satisfies g·d >= |d|² for every gradient g, so no loss rises along it.
    assert (vectors @ direction).min() >= direction.square().sum() - 1e-9


def test_cagrad_of_two_orthogonal_gradients_follows_their_mean():
    vectors, inner = products((1.0, 0.0), (0.0, 1.0))
    torch.testing.assert_close(cagrad_weights(inner, 0.5) @ vectors, torch.full((2,), 0.75, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("closeness", [0.0, 0.3, 0.9])
def test_cagrad_is_the_best_direction_in_its_ball(seed: int, closeness: float):
    vectors, inner = random_gradients(4, 3, seed)
    direction, mean = cagrad_weights(inner, closeness) @ vectors, vectors.mean(0)
    radius = closeness * mean.norm()
    torch.testing.assert_close((direction - mean).norm(), radius)
    worst = (vectors @ direction).min()
    assert worst >= (vectors @ mean).min() - 1e-9
    around = torch.randn(20_000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    others = mean + radius * around / around.norm(dim=1, keepdim=True)
    assert (others @ vectors.T).min(dim=1).values.max() <= worst + 1e-7


def test_cagrad_needs_a_closeness_below_one():
    with pytest.raises(InvalidConfig, match="closeness is 1"):
        cagrad_weights(torch.eye(2, dtype=torch.float64), 1)


@pytest.mark.parametrize("method", METHODS)
def test_combine_and_assign(method: str):
    vectors, inner = products((1.0, 0.0, 2.0), (-1.0, 1.0, 0.0))
    first, second = torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    parameters = [first.requires_grad_(), second.requires_grad_()]
    a, b = linear_losses(vectors, torch.cat(parameters))
    result = combine({"a": a, "b": b}, parameters, method=method)
    weights = torch.tensor([result.weights["a"], result.weights["b"]], dtype=torch.float64)
    expected = {
        "sum": torch.ones(2),
        "pcgrad": pcgrad_weights(inner),
        "mgda": mgda_weights(inner),
        "cagrad": cagrad_weights(inner, 0.4),
    }[method]
    torch.testing.assert_close(weights, expected.double())
    assert first.grad is None
    result.assign(parameters)
    torch.testing.assert_close(torch.cat([first.grad, second.grad]), weights @ vectors)
    assert result.norms == {"a": pytest.approx(math.sqrt(5)), "b": pytest.approx(math.sqrt(2))}
    assert result.cosines == {("a", "b"): pytest.approx(-1 / math.sqrt(10))}
    assert result.conflicts == (("a", "b"),)


@pytest.mark.parametrize("method", METHODS)
def test_a_single_loss_and_a_zero_gradient(method: str):
    point = torch.ones(2, requires_grad=True)
    single = combine([point.square().sum()], [point], method=method)
    factor = 1.4 if method == "cagrad" else 1.0  # the direction is longer: the ball extends along the only gradient
    torch.testing.assert_close(single.gradients[0], torch.full((2,), 2.0) * factor)
    flat = combine([point.sum() * 0, point.sum() * 0], [point], method=method)
    assert torch.equal(flat.gradients[0], torch.zeros(2))


def test_training_reaches_a_pareto_point():
    point = torch.tensor([3.0, -2.0], dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        losses = [(point - torch.tensor([1.0, 0.0])).square().sum(), (point + torch.tensor([1.0, 0.0])).square().sum()]
        combine(losses, [point], method="mgda").assign([point])
        with torch.no_grad():
            point -= 0.1 * point.grad
    assert abs(point[1].item()) < 1e-6
    assert abs(point[0].item()) < 1 + 1e-9


def test_an_unknown_method_is_refused():
    with pytest.raises(InvalidConfig, match="method is 'pcgard'"):
        combine([torch.ones(1, requires_grad=True).sum()], [], method="pcgard")
