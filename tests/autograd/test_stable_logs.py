"""Softplus, log-sigmoid and log1mexp: against 50 digits, both derivatives, vmap, autocast, and large arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from trueloop.autograd.stable_logs import log1mexp, log_sigmoid, softplus
from trueloop.core.errors import InvalidData

# torch 2.13 warns of its own way to trace a Function.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

INF = math.inf
FUNCTIONS = (softplus, log_sigmoid, log1mexp)
each = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
POINTS = (-700.0, -40.0, -20.5, -1.0, -0.7, -0.69, -0.25, -1e-3, -1e-12, 0.0, 1e-9, 0.5, 15.0, 20.5, 33.0, 700.0)


def tolerance(function: Callable[..., Tensor]) -> list[float]:
    return [x_value for x_value in POINTS if function is not log1mexp or x_value < 0]


def exact_value(function: Callable[..., Tensor], x: float) -> float:
    """Return the value of the defining formula, computed with enough digits and rounded to a float."""
    with localcontext(prec=400):
        if function is log1mexp:
            return float((1 - Decimal(x).exp()).ln())
        up = Decimal(x if function is softplus else -x)
        value = (1 + up.exp()).ln()
        return float(value if function is softplus else -value)


@each
def test_values_are_correct_to_the_last_digit(function: Callable[..., Tensor]):
    x = torch.tensor(tolerance(function), dtype=torch.float64)
    expected = torch.tensor([exact_value(function, x_value) for x_value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(function(x), expected, rtol=4e-16, atol=0)


@each
def test_both_derivatives_agree_with_finite_differences(function: Callable[..., Tensor]):
    x = torch.tensor([-5.0, -0.9, -0.4, -0.2], dtype=torch.float64, requires_grad=True)
    assert gradcheck(function, x)
    assert gradgradcheck(function, x)


@each
def test_values_and_derivatives_are_finite_far_from_zero(function: Callable[..., Tensor]):
    points = [-1e4, -90.0] + ([90.0, 1e4] if function is not log1mexp else [])
    x = torch.tensor(points, requires_grad=True)
    value = function(x)
    (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    for tensor in (value, first, second):
        assert torch.isfinite(tensor).all()
    if function is log_sigmoid:
        assert (value[0].item(), value[1].item(), value[3].item()) == (-1e4, -90.0, 0.0)
        assert (first[0].item(), first[3].item()) == (1.0, 0.0)


def test_values_at_infinity_and_zero():
    ends = torch.tensor([-INF, INF])
    assert softplus(ends).tolist() == [0.0, INF]
    assert log_sigmoid(ends).tolist() == [-INF, 0.0]
    value = log1mexp(torch.tensor([-INF, 0.0, 0.5]))
    assert value[:2].tolist() == [0.0, -INF]
    assert value[2].isnan()


def test_probability_and_complement_sum_to_one():
    logits = torch.linspace(-30, 30, 101, dtype=torch.float64)
    log_p = log_sigmoid(logits)
    torch.testing.assert_close(log1mexp(log_p), log_sigmoid(-logits), rtol=1e-3, atol=0)
    torch.testing.assert_close(log1mexp(log_p[:60]), log_sigmoid(-logits[:60]), rtol=1e-14, atol=1e-18)


@each
def test_vmap_and_torch_func(function: Callable[..., Tensor]):
    x = torch.tensor([[-3.0, -0.5], [-0.1, -2.0]], dtype=torch.float64)
    assert torch.equal(torch.func.vmap(function, in_dims=1, out_dims=1)(x), function(x))
    first = torch.func.vmap(torch.func.vmap(torch.func.grad(function)))(x)
    torch.testing.assert_close(first, torch.autograd.functional.jacobian(lambda x: function(x).sum(), x))
    second = torch.func.vmap(torch.func.vmap(torch.func.grad(torch.func.grad(function))))(x)
    diagonal = torch.autograd.functional.hessian(lambda x: function(x).sum(), x).reshape(4, 4).diagonal()
    torch.testing.assert_close(second.flatten(), diagonal)


@each
def test_half_precision_and_autocast(function: Callable[..., Tensor]):
    x = torch.tensor([-3.0, -0.5], dtype=torch.bfloat16, requires_grad=True)
    assert torch.equal(function(x), function(x.float()).bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = function(x)
    assert inside.dtype == torch.float32
    inside.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16


COMPILED = """
import warnings
import torch
from trueloop.autograd import log1mexp, log_sigmoid, softplus

warnings.filterwarnings("ignore", ".*should not be instantiated", DeprecationWarning)
x = torch.tensor([-3.0, -0.5])
for function in (softplus, log_sigmoid, log1mexp):
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), function(x))
    ours = torch.autograd.functional.jacobian(compiled, x)
    torch.testing.assert_close(ours, torch.autograd.functional.jacobian(function, x))
    print(function.__name__)
"""


def test_compiled_functions_are_the_same(forker, tmp_path: Path):
    script = (
        tmp_path / "compiled.py"
    )  # in a separate program, because other tests have changed the state of torch.compile
    script.write_text(COMPILED)
    done = forker.run(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["softplus", "log_sigmoid", "log1mexp"]


@each
def test_integers_are_refused(function: Callable[..., Tensor]):
    with pytest.raises(InvalidData, match=f"{function.__name__} got a tensor of type int64"):
        function(torch.tensor([-1]))
