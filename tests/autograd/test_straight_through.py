"""Straight-through estimators: the forward's values, and the gradient of the function that each names."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trueloop.autograd.straight_through import fake_quantise, one_hot_through, round_through, sign_through
from trueloop.core.errors import InvalidConfig, InvalidData

# torch 2.13 warns of its own way to trace a Function.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def random_values(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def test_rounding_passes_the_gradient_unchanged():
    x, above = torch.tensor([-1.5, 0.4, 0.5, 2.5], requires_grad=True), torch.tensor([1.0, -2.0, 3.0, 4.0])
    value = round_through(x)
    assert value.tolist() == [-2.0, 0.0, 0.0, 2.0]
    value.backward(above)
    assert torch.equal(x.grad, above)


def test_the_sign_has_two_values_and_a_window():
    x = torch.tensor([-3.0, -1.0, 0.0, 0.5, 1.5], requires_grad=True)
    value = sign_through(x)
    assert value.tolist() == [-1.0, -1.0, 1.0, 1.0, 1.0]
    value.sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]
    x.grad = None
    sign_through(x, window=float("inf")).sum().backward()
    assert x.grad.tolist() == [1.0] * 5
    assert sign_through(torch.tensor([torch.nan])).isnan().all()


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_one_hot_has_the_gradient_of_softmax(dim: int):
    x, above = random_values(4, 3).requires_grad_(), random_values(4, 3).flip(0)
    value = one_hot_through(x, dim, temperature=0.5)
    assert torch.equal(value.argmax(dim), x.argmax(dim))
    assert torch.equal(value.sum(dim), torch.ones_like(value.sum(dim)))
    (actual,) = torch.autograd.grad(value, x, above)
    (softs,) = torch.autograd.grad((x / 0.5).softmax(dim), x, above)
    torch.testing.assert_close(actual, softs)


def test_one_hot_under_masks_and_ties():
    x = torch.tensor([[1.0, 1.0, 0.0], [-torch.inf, -1.0, -2.0], [-torch.inf] * 3], requires_grad=True)
    value = one_hot_through(x)
    assert value.tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    (value * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert not x.grad[2].any()


@pytest.mark.parametrize(("bits", "signed", "zero_point"), [(8, True, 0), (4, True, 1), (8, False, 128), (2, False, 0)])
def test_fake_quantisation_equals_that_of_torch(bits: int, signed: bool, zero_point: int):
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    x = (random_values(200).float() * 4).requires_grad_()
    actual = fake_quantise(x, 0.03, bits=bits, signed=signed, zero_point=zero_point)
    expected = torch.fake_quantize_per_tensor_affine(x, 0.03, zero_point, low, high)
    torch.testing.assert_close(actual, expected)
    assert len(actual.unique()) <= 2**bits
    (of_ours,), (of_theirs,) = torch.autograd.grad(actual.sum(), x), torch.autograd.grad(expected.sum(), x)
    assert torch.equal(of_ours, of_theirs)
    assert 0 < of_ours.sum() < len(x), "some are clipped, some are not"


def test_the_gradient_of_the_scale_is_that_of_learned_step_sizes():
    x = torch.tensor([0.1, 0.26, 9.0, -9.0], dtype=torch.float64)
    scale = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    fake_quantise(x, scale, bits=3).sum().backward()
    inside = (0 - 0.5) + (1 - 1.3)  # the rounding errors in steps; 0.5 rounds to the even 0
    torch.testing.assert_close(scale.grad, torch.tensor(inside + 3 - 4, dtype=torch.float64))


def test_a_scale_for_each_filter():
    x = random_values(3, 2, 2)
    scale = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64).reshape(3, 1, 1).requires_grad_()
    value = fake_quantise(x, scale, bits=4)
    for row, step, result in zip(x, scale.flatten(), value, strict=True):
        assert torch.equal(result, fake_quantise(row, step.detach(), bits=4))
    value.sum().backward()
    assert scale.grad.shape == (3, 1, 1)


def test_vmap_equals_a_loop():
    x = random_values(4, 5)
    for function in (round_through, sign_through, one_hot_through, lambda row: fake_quantise(row, 0.1)):
        assert torch.equal(torch.func.vmap(function)(x), torch.stack([function(row) for row in x]))
        grads = torch.func.vmap(torch.func.grad(lambda row, f=function: (f(row) * row).sum()))(x)
        looped = [torch.func.grad(lambda row, f=function: (f(row) * row).sum())(row) for row in x]
        torch.testing.assert_close(grads, torch.stack(looped))


def test_a_scale_is_shared_or_per_sample_under_vmap():
    x, scales = random_values(4, 5), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)

    def to_scale(row: Tensor, scale: Tensor) -> Tensor:
        return fake_quantise(row, scale, bits=4).square().sum()

    result = torch.func.vmap(torch.func.grad(to_scale, argnums=1))(x, scales)
    looped = [torch.func.grad(to_scale, argnums=1)(row, scale) for row, scale in zip(x, scales, strict=True)]
    torch.testing.assert_close(result, torch.stack(looped))


def test_second_derivatives():
    x = random_values(3).requires_grad_()
    (first,) = torch.autograd.grad(round_through(x * x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, torch.full_like(x, 2))


@pytest.mark.parametrize(
    "function",
    [round_through, sign_through, one_hot_through, lambda x: fake_quantise(x, 0.1)],
    ids=["round", "sign", "one_hot", "quantise"],
)
def test_compiled_functions_are_the_same(function):
    x = random_values(6)
    compiled = torch.compile(lambda x: (function(x.clone()) * x).sum(), backend="aot_eager", fullgraph=True)
    actual = torch.autograd.functional.jacobian(compiled, x)
    torch.testing.assert_close(actual, torch.autograd.functional.jacobian(lambda x: (function(x) * x).sum(), x))


def test_invalid_arguments_are_refused():
    x = torch.zeros(3, 4)
    with pytest.raises(InvalidConfig, match="bits is 1"):
        fake_quantise(x, 0.1, bits=1)
    with pytest.raises(InvalidConfig, match="zero_point is 128") as caught:
        fake_quantise(x, 0.1, zero_point=128)
    assert "-128 to 127" in caught.value.fix
    with pytest.raises(InvalidData, match=r"scale has the shape \(3,\)"):
        fake_quantise(x, torch.ones(3))
    with pytest.raises(InvalidData, match=r"scale has the shape \(2, 3, 4\)"):
        fake_quantise(x, torch.ones(2, 3, 4))
    with pytest.raises(InvalidConfig, match="window is 0"):
        sign_through(x, window=0)
    with pytest.raises(InvalidConfig, match="temperature is 0"):
        one_hot_through(x, temperature=0)
    with pytest.raises(InvalidData, match="round_through got a tensor of type int64"):
        round_through(torch.ones(2, dtype=torch.int64))
