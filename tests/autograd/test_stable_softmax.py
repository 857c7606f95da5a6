"""Softmax and its family: gradients of both orders by finite differences, at ±1e4, under masks, vmap and autocast."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from trueloop.autograd.stable_softmax import entropy, log_softmax, log_sum_exp, softmax
from trueloop.core.errors import InvalidData

# torch 2.13 warns of its own way to trace a Function.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

INF = torch.inf
FUNCTIONS = (log_sum_exp, softmax, log_softmax, entropy)
each = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)


def random_logits(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(3))


def torch_value(function: Callable[..., Tensor], x: Tensor, dim: int) -> Tensor:
    """Return torch's value, which is correct for ordinary logits."""
    if function is log_sum_exp:
        return x.logsumexp(dim)
    if function is entropy:
        return -(x.softmax(dim) * x.log_softmax(dim)).sum(dim)
    return x.softmax(dim) if function is softmax else x.log_softmax(dim)


def gradient(function: Callable[..., Tensor], x: Tensor, above: Tensor | None = None, dim: int = -1) -> Tensor:
    x = x.detach().requires_grad_()
    value = function(x, dim)
    (result,) = torch.autograd.grad(value, x, torch.ones_like(value) if above is None else above)
    return result


@each
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_values_equal_those_of_torch_for_ordinary_logits(function: Callable[..., Tensor], dim: int):
    x = random_logits(4, 5, 3)
    torch.testing.assert_close(function(x, dim), torch_value(function, x, dim), rtol=1e-13, atol=1e-13)


@each
@pytest.mark.parametrize("dim", [0, -1])
def test_first_and_second_derivatives_agree_with_finite_differences(function: Callable[..., Tensor], dim: int):
    x = random_logits(3, 4).requires_grad_()
    assert gradcheck(lambda x: function(x, dim), x)
    assert gradgradcheck(lambda x: function(x, dim), x)


@each
def test_derivatives_under_a_mask_equal_those_of_the_unmasked_logits(function: Callable[..., Tensor]):
    keep = torch.tensor([True, False, True, True, False])
    unmasked = random_logits(2, 3).requires_grad_()

    def masked(unmasked: Tensor) -> Tensor:
        x = torch.full((2, 5), -INF, dtype=unmasked.dtype)
        x = x.masked_scatter(keep.expand(2, 5), unmasked)
        value = function(x, -1)
        return value[..., keep] if value.dim() == 2 else value

    torch.testing.assert_close(masked(unmasked), function(unmasked, -1))
    assert gradcheck(masked, unmasked)
    assert gradgradcheck(masked, unmasked)


@each
def test_a_fully_masked_row_gives_no_nan(function: Callable[..., Tensor]):
    x = torch.full((2, 3), -INF, requires_grad=True)
    value = function(x, -1)
    expected = {log_sum_exp: -INF, softmax: 0.0, log_softmax: -INF, entropy: 0.0}[function]
    assert torch.equal(value, torch.full_like(value, expected))
    (first,) = torch.autograd.grad(value, x, torch.ones_like(value), create_graph=True)
    assert torch.equal(first, torch.zeros_like(x))
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, torch.zeros_like(x))


@each
def test_a_masked_position_has_gradient_zero(function: Callable[..., Tensor]):
    x = random_logits(2, 4)
    x[:, 2] = -INF
    value = function(x, -1)
    above = torch.arange(value.numel(), dtype=x.dtype).reshape(value.shape) + 1
    result = gradient(function, x, above)
    assert torch.isfinite(result).all()
    assert not result[:, 2].any()
    assert result[:, [0, 1, 3]].any()


@each
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_float32_logits_keep_their_digits(function: Callable[..., Tensor], size: float):
    near = torch.tensor([[0.0, 0.5, 1.0], [2.0, 2.0, 2.0]])  # exact beside 1e4 in float32
    large = near + size
    expected = torch_value(function, near.double(), -1) + (size if function is log_sum_exp else 0)
    tolerance = {"rtol": 2e-7, "atol": 2e-7}
    torch.testing.assert_close(function(large, -1).double(), expected, **tolerance)
    rows = function in (softmax, log_softmax)
    above = torch.tensor([1.0, -2.0, 3.0]).expand_as(large) if rows else torch.ones(2)
    of_small = gradient(lambda x, dim: torch_value(function, x, dim), near.double(), above.double())
    torch.testing.assert_close(gradient(function, large, above).double(), of_small, rtol=1e-6, atol=1e-6)


@each
def test_very_different_logits_stay_finite(function: Callable[..., Tensor]):
    x = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    value = function(x, -1)
    expected = {
        log_sum_exp: [1e4],
        softmax: [[1.0, 0.0, 0.0]],
        log_softmax: [[0.0, -2e4, -1e4]],
        entropy: [0.0],
    }[function]
    assert torch.equal(value, torch.tensor(expected))
    (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert torch.isfinite(first).all()
    assert torch.isfinite(second).all()


@each
@pytest.mark.parametrize("bad", [INF, math.nan])
def test_an_overflow_is_not_hidden(function: Callable[..., Tensor], bad: float):
    value = function(torch.tensor([1.0, bad, 2.0]), -1)
    assert not torch.isfinite(value).all()


@each
def test_vmap_equals_a_loop_along_any_dimension(function: Callable[..., Tensor]):
    x = random_logits(4, 3, 5)
    for dim in (0, -1):
        looped = torch.stack([function(row, dim) for row in x])
        assert torch.equal(torch.func.vmap(lambda row, dim=dim: function(row, dim))(x), looped)
        of_columns = torch.func.vmap(lambda row, dim=dim: function(row, dim), in_dims=1, out_dims=0)(x)
        assert torch.equal(of_columns, torch.stack([function(x[:, i], dim) for i in range(3)]))


@each
def test_per_sample_gradients_and_hessians_of_torch_func(function: Callable[..., Tensor]):
    x = random_logits(4, 3)

    def scalar(row: Tensor) -> Tensor:
        return function(row, -1).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(scalar))(x)
    looped = torch.stack([torch.autograd.functional.jacobian(scalar, row) for row in x])
    torch.testing.assert_close(per_sample, looped)
    hessians = torch.func.vmap(torch.func.jacrev(torch.func.jacrev(scalar)))(x)
    torch.testing.assert_close(hessians, torch.stack([torch.autograd.functional.hessian(scalar, row) for row in x]))


@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(function: Callable[..., Tensor], dtype: torch.dtype):
    x = random_logits(3, 40, dtype=torch.float32).to(dtype)
    assert torch.equal(function(x, -1), function(x.float(), -1).to(dtype))
    assert gradient(function, x).dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = function(x, -1)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, function(x.float(), -1))


@each
def test_backward_inside_autocast_equals_backward_outside(function: Callable[..., Tensor]):
    layer, data = nn.Linear(6, 5), random_logits(4, 6, dtype=torch.float32)
    result: list[Tensor] = []
    for backward_inside in (True, False):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = function(layer(data), -1).square().sum()
            if backward_inside:
                loss.backward()
        if not backward_inside:
            loss.backward()
        result.append(layer.weight.grad.clone())
    assert torch.equal(*result)
    assert result[0].any()


@each
def test_compiled_functions_are_the_same(function: Callable[..., Tensor]):
    x = random_logits(3, 4)
    x[0, 1] = -INF
    weight = random_logits(3, 4)

    def loss(x: Tensor) -> Tensor:
        value = function(x.clone(), -1)
        return (torch.where(value == -INF, 0, value) * (weight if value.dim() == 2 else weight[:, 0])).sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), loss(x))
    torch.testing.assert_close(
        torch.autograd.functional.jacobian(compiled, x), torch.autograd.functional.jacobian(loss, x)
    )


def test_without_a_gradient_nothing_is_saved():
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        softmax(random_logits(3, 4))
        assert not saved
        softmax(random_logits(3, 4).requires_grad_())
    assert [tuple(tensor.shape) for tensor in saved] == [(3, 4)], "one tensor, its own output"


def test_cross_entropy_from_log_softmax_equals_torch():
    logits, target = random_logits(6, 5).requires_grad_(), torch.tensor([0, 4, 2, 2, 1, 3])
    actual = -log_softmax(logits)[torch.arange(6), target].mean()
    reference = F.cross_entropy(logits, target)
    torch.testing.assert_close(actual, reference)
    torch.testing.assert_close(torch.autograd.grad(actual, logits), torch.autograd.grad(reference, logits))


def test_keepdim_and_an_empty_batch():
    assert log_sum_exp(random_logits(4, 5), 0, keepdim=True).shape == (1, 5)
    assert softmax(random_logits(0, 5)).shape == (0, 5)


@each
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_types_other_than_real_floats_are_refused(function: Callable[..., Tensor], dtype: torch.dtype):
    with pytest.raises(InvalidData, match=f"{function.__name__} got a tensor of type {str(dtype)[6:]}"):
        function(torch.ones(3, dtype=dtype))
