"""Tensors that the nodes of a graph have saved are read without unpacking, or reported as unreadable."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trueloop.tracing.losses import LossProbe
from trueloop.tracing.saved_tensors import (
    BEHIND_HOOKS,
    UNSUPPORTED_TORCH,
    input_shape,
    result_shape,
    saved_tensor,
    unreadable_reason,
)

Y = torch.tensor([0, 1, 2, 0])


def loss() -> Tensor:
    return F.cross_entropy(torch.randn(4, 3, requires_grad=True) * 2, Y)


@pytest.fixture
def without_saved_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data", "unpack_hook"):
        monkeypatch.delattr(torch._C._autograd.SavedTensor, name, raising=False)


@pytest.mark.reads_saved
def test_both_share_memory():
    node = loss().grad_fn
    found = saved_tensor(node, "target")
    assert found is not None
    assert found.data_ptr() == Y.data_ptr()
    assert (saved_tensor(node, "weight"), saved_tensor(node, "nothing")) == (None, None)
    assert unreadable_reason(node, "target") == ""


def test_shapes_are_those_of_results_and_of_inputs():
    node = loss().grad_fn
    assert (result_shape(node), input_shape(node), result_shape(node, 1)) == ((), (4, 3), None)
    assert input_shape(F.mse_loss(torch.ones(2), torch.ones(2, requires_grad=True)).grad_fn) == (2,)
    assert input_shape(F.mse_loss(torch.ones(5), torch.ones(5, requires_grad=True) * 1).grad_fn) == (5,)


@pytest.mark.reads_saved
def test_hooks_of_the_program_do_not_run():
    ran: list[int] = []

    def unpack(tensor: Tensor) -> Tensor:
        ran.append(1)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        node = loss().grad_fn
    assert saved_tensor(node, "target") is None
    assert (unreadable_reason(node, "target"), ran) == (BEHIND_HOOKS, [])


def test_freed_objects_are_gone():
    total = loss()
    total.backward()
    assert saved_tensor(total.grad_fn, "target") is None
    assert unreadable_reason(total.grad_fn, "target") == (
        "" if hasattr(torch._C._autograd.SavedTensor, "data") else UNSUPPORTED_TORCH
    )


@pytest.mark.usefixtures("without_saved_tensors")
def test_an_unsupported_version_is_named_and_the_rest_is_read():
    (found,) = LossProbe(loss()).losses()
    assert (found.kind, found.shape, found.divisor, found.targets) == ("cross_entropy", (4, 3), None, None)
    assert found.unreadable_reason == UNSUPPORTED_TORCH


@pytest.mark.usefixtures("without_saved_tensors")
def test_a_softmax_over_another_dimension_is_still_recognised():
    scores = torch.randn(4, 3, requires_grad=True) * 1
    (found,) = LossProbe(F.cross_entropy(scores.softmax(0), Y)).losses()
    assert found.input_operations[0] == "softmax_elsewhere"
    (found,) = LossProbe(F.cross_entropy(scores.softmax(1), Y)).losses()
    assert found.input_operations[0] == "softmax"


@pytest.mark.usefixtures("without_saved_tensors")
def test_kl_div_and_label_smoothing_are_still_recognised():
    logits = torch.randn(4, 3, requires_grad=True) * 1
    (found,) = LossProbe(F.kl_div(F.log_softmax(logits, 1), torch.rand(4, 3), reduction="sum")).losses()
    assert (found.kind, found.shape) == ("kl_div", (4, 3))
    (found,) = LossProbe(F.cross_entropy(logits, Y, label_smoothing=0.1)).losses()
    assert found.kind == "cross_entropy"
