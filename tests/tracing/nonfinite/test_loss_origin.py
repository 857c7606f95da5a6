"""The operation that made a loss non-finite, found in the graph of the loss."""

from __future__ import annotations

import pytest
import torch

from trueloop.tracing.nonfinite.loss_origin import find_loss_origin

INF = float("inf")


def zeros(*values):
    return torch.tensor(values, requires_grad=True) * 1.0


@pytest.mark.reads_saved
@pytest.mark.parametrize(
    ("loss", "operation", "inputs"),
    [
        (lambda: -zeros(0.0, 0.5).log().mean(), "log", "min 0, max 0.5, 1 of 2 zero"),
        (lambda: torch.sum(zeros(-2.0, 0.5).log1p() * 2), "log1p", "min -2, max 0.5"),
        (lambda: zeros(1.0, 2.0).sum() / torch.zeros(()), "div", "a divisor of min 0, max 0, 1 of 1 zero"),
        (lambda: torch.mean(zeros(0.0, 2.0) ** -1), "pow", "min 0, max 2, 1 of 2 zero"),
        (lambda: torch.mean(zeros(-1.0, 2.0) ** 0.5), "pow", "min -1, max 2"),
        (lambda: zeros(1.0).square().mean() + 0.1 * zeros(0.0).log2().abs().sum(), "log2", "1 of 1 zero"),
        (lambda: torch.stack([zeros(1.0).sum(), zeros(0.0).log10().sum()]).sum(), "log10", "1 of 1 zero"),
        (lambda: (zeros(0.0, 1.0).log().log() * 3).view(2, 1).mean(), "log", "min 0, max 1, 1 of 2 zero"),
    ],
)
def test_the_operation_and_its_inputs(loss, operation, inputs):
    root = loss()
    assert not root.isfinite()
    origin = find_loss_origin(root)
    assert origin is not None
    assert origin.operation == operation
    assert inputs in origin.inputs


@pytest.mark.parametrize(
    "loss",
    [
        lambda: torch.sum(zeros(1.0) * INF),
        lambda: zeros(1.0, INF).log().mean(),
        lambda: zeros(0.0, 1.0).log().relu().sum() * INF,  # the logarithm does not get through
        lambda: torch.where(torch.tensor([False, True]), zeros(0.0, 1.0).log(), zeros(1.0, 1.0)).sum() * INF,
        lambda: zeros(0.0, 1.0).log()[1:].sum() * INF,
        lambda: (zeros(0.0).log() ** -1).sum() * INF,  # 1 / infinity is zero
        lambda: (zeros(1.0) / zeros(0.0).log()).sum() * INF,
        lambda: torch.tensor(INF),
        lambda: torch.sum(zeros(1.0) + torch.tensor(INF)),
    ],
)
def test_nothing_uncertain_is_reported(loss):
    assert find_loss_origin(loss()) is None


def test_a_freed_graph_returns_nothing():
    loss = -zeros(0.0, 0.5).log().mean()
    loss.backward()
    assert find_loss_origin(loss) is None


def test_no_user_hook_is_called():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: pytest.fail("it was unpacked")):
        loss = -zeros(0.0, 0.5).log().mean()
    assert find_loss_origin(loss) is None
