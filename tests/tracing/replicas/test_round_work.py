"""Digests of the inputs and gradients of one round, and their comparison between ranks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from trueloop.tracing.replicas.round_work import RoundWork, compare_rounds, record_round, unknown_rows

ROUNDING = 1e-6
X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))


def digest_rows(inputs, targets: Tensor, *, scale: float = 1.0) -> list[list[float]]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    work = record_round(1, inputs, list(net.parameters()), RoundWork.on_gradient)
    assert work is not None
    (scale * nn.functional.mse_loss(net(X), targets)).backward()
    work.close()
    digest = work.digest_rows()
    assert digest is not None
    return digest.tolist()


def test_the_same_inputs_and_gradient_are_the_same_work():
    y = X.sum(1, keepdim=True)
    done = compare_rounds(
        digest_rows(((X, {"y": [y]}),), y), digest_rows(((X.clone(), {"y": [y.clone()]}),), y), ROUNDING
    )
    assert done is not None
    assert done.same_inputs_and_gradients


@pytest.mark.parametrize("other", [X + 1e-6, X.roll(1, 0), X[:8], X.flip(1)])
def test_different_inputs_are_different_work(other: Tensor):
    y = X.sum(1, keepdim=True)
    done = compare_rounds(digest_rows((X,), y), digest_rows((other,), y), ROUNDING)
    assert done is not None
    assert not done.same_inputs_and_gradients


def test_the_order_of_inputs_counts():
    y = X.sum(1, keepdim=True)
    assert compare_rounds(digest_rows((X, y), y), digest_rows((y, X), y), ROUNDING).same_inputs_and_gradients is False


def test_a_gradient_differs_only_beyond_rounding():
    y = X.sum(1, keepdim=True)
    assert compare_rounds(digest_rows((X,), y), digest_rows((X,), -y), ROUNDING).same_inputs_and_gradients is False
    assert (
        compare_rounds(digest_rows((X,), y), digest_rows((X,), y, scale=1 + 1e-4), ROUNDING).same_inputs_and_gradients
        is False
    )
    assert (
        compare_rounds(digest_rows((X,), y), digest_rows((X,), y, scale=1 + 1e-7), ROUNDING).same_inputs_and_gradients
        is True
    )


def test_no_report_without_a_nonfinite_gradient():
    y = X.sum(1, keepdim=True)
    seen = digest_rows((X,), y)
    assert compare_rounds(digest_rows((X,), y, scale=0.0), digest_rows((X,), y, scale=0.0), ROUNDING) is None
    assert compare_rounds(digest_rows((X,), y, scale=math.nan), seen, ROUNDING) is None
    assert compare_rounds(seen, unknown_rows(torch.device("cpu")).tolist(), ROUNDING) is None


def test_incomparable_data_is_left_out():
    weight = nn.Parameter(torch.ones(3))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    for inputs in ((), ("words", 3), (torch.empty(0),), (torch.ones(3).to_sparse(),)):
        work = record_round(1, inputs, [weight], RoundWork.on_gradient)
        assert work is not None
        (2 * weight).sum().backward()
        assert work.digest_rows() is None
    assert record_round(1, (X,), [frozen], RoundWork.on_gradient) is None
    assert record_round(1, (X,), [], RoundWork.on_gradient) is None


def test_after_closing_nothing_is_recorded_and_no_hook_is_left():
    weight = nn.Parameter(torch.ones(3))
    work = record_round(
        1, (X,), [weight, frozen := nn.Parameter(torch.ones(1), requires_grad=False)], RoundWork.on_gradient
    )
    assert work is not None
    (2 * weight).sum().backward()
    before = work.digest_rows()
    work.close()
    (5 * weight).sum().backward()
    assert before is not None
    assert work.digest_rows().equal(before)
    assert not weight._backward_hooks
    assert not frozen._backward_hooks


def test_a_gradient_is_the_one_of_this_process_and_adds_up_over_backwards():
    weight = nn.Parameter(torch.ones(3))
    once, twice = (record_round(1, (X,), [weight], RoundWork.on_gradient) for _ in range(2))
    assert once is not None
    assert twice is not None
    (2 * weight).sum().backward()
    once.close()
    (2 * weight).sum().backward()
    assert twice.digest_rows()[1].equal(2 * once.digest_rows()[1])
