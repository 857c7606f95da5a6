"""The chunked loss equals torch's in value and gradient, and never stores the logits of all tokens."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trueloop.autograd.cross_entropy import chunked_cross_entropy
from trueloop.core.errors import InvalidData, InvalidModel

WORDS, WIDTH, TOKENS = 11, 5, 14


def parts(dtype: torch.dtype = torch.float64, *, bias: bool = True):
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, WORDS, bias=bias).to(dtype)
    hidden = torch.randn(2, TOKENS // 2, WIDTH, dtype=dtype, requires_grad=True)
    target = torch.randint(0, WORDS, (2, TOKENS // 2))
    target[0, 2] = target[1, 4] = -100
    return hidden, head, target


def reference(hidden: Any, head: Any, target: Any, **settings: Any):
    logits = F.linear(hidden, head.weight, head.bias)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum", **settings)


@pytest.mark.parametrize(
    ("chunk", "smoothing", "weighted", "bias"),
    list(itertools.product([1, 4, None], [0.0, 0.1, 1.0], [False, True], [False, True])),
)
def test_value_count_and_gradients_equal_those_of_torch(chunk: Any, smoothing: float, weighted: bool, bias: bool):
    weight = torch.rand(WORDS, dtype=torch.float64) if weighted else None
    settings = {"weight": weight, "label_smoothing": smoothing}
    hidden, head, target = parts(bias=bias)
    inputs = [hidden, *head.parameters()]
    term = chunked_cross_entropy(hidden, head, target, chunk=chunk, **settings)
    total = reference(hidden, head, target, **settings)
    assert torch.allclose(term.sum, total, rtol=1e-12, atol=0)
    actual, torchs = (torch.autograd.grad(value * 0.37, inputs) for value in (term.sum, total))
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-14) for a, b in zip(actual, torchs, strict=True))
    mean = F.cross_entropy(F.linear(hidden, head.weight, head.bias).flatten(0, 1), target.flatten(), **settings)
    assert torch.allclose(term.sum / term.count, mean, rtol=1e-12, atol=0)


def test_ignore_index_and_labels_out_of_range():
    hidden, head, target = parts()
    target = target.clamp(min=0)
    term = chunked_cross_entropy(hidden, head, target, ignore_index=0, chunk=3)
    assert torch.allclose(term.sum, reference(hidden, head, target, ignore_index=0), rtol=1e-12, atol=0)
    assert int(term.count) == int((target != 0).sum())
    target[1, 1] = WORDS
    with pytest.raises(RuntimeError, match="out of bounds"):
        chunked_cross_entropy(hidden, head, target)


def test_a_uint8_target_is_not_confused_with_ignore_index():
    torch.manual_seed(0)
    hidden, matrix, target = torch.randn(3, WIDTH), torch.randn(200, WIDTH), torch.tensor([156, 3, 156])
    term = chunked_cross_entropy(hidden, matrix, target.byte())  # -100 is 156 in uint8
    assert int(term.count) == 3
    assert torch.equal(term.sum, chunked_cross_entropy(hidden, matrix, target).sum)


def test_if_all_targets_are_ignored_sum_and_gradient_are_zero():
    hidden, head, target = parts()
    term = chunked_cross_entropy(hidden, head, torch.full_like(target, -100))
    term.sum.backward()
    assert (term.sum.item(), int(term.count), float(hidden.grad.abs().max())) == (0.0, 0, 0.0)


def test_only_tensors_that_require_a_gradient_get_one():
    hidden, head, target = parts()
    head.requires_grad_(False)
    chunked_cross_entropy(hidden, head.weight, target, chunk=3).sum.backward()
    assert hidden.grad is not None
    assert head.weight.grad is None
    hidden = hidden.detach()
    tied = nn.Embedding.from_pretrained(torch.randn(WORDS, WIDTH).double(), freeze=False)
    chunked_cross_entropy(hidden, tied, target, chunk=3).sum.backward()
    assert tied.weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_rounds_like_a_linear_layer(dtype: torch.dtype):
    hidden, head, target = parts(torch.float32)
    inputs = [hidden, *head.parameters()]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        term = chunked_cross_entropy(hidden, head, target, chunk=4)
        total = F.cross_entropy(head(hidden).flatten(0, 1), target.flatten(), reduction="sum")
    assert term.sum.dtype == torch.float32
    assert torch.allclose(term.sum, total, rtol=1e-6, atol=0)
    near = 1e-6 if dtype == torch.float32 else 2e-2  # the gradient passes through bfloat16 in both
    actual, torchs = (torch.autograd.grad(value, inputs) for value in (term.sum, total))
    assert all(torch.allclose(a, b, rtol=near, atol=near) for a, b in zip(actual, torchs, strict=True))


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that is created."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        created = [leaf.numel() for leaf in tree_leaves(result) if torch.is_tensor(leaf)]
        self.numbers = max([self.numbers, *created])
        return result


def test_the_logits_of_all_tokens_are_never_stored():
    tokens, message, width, chunk = 512, 128, 8, 32
    head, hidden = nn.Linear(width, message), torch.randn(tokens, width, requires_grad=True)
    target = torch.randint(0, message, (tokens,))

    def largest_and_saved(loss: Any) -> tuple[int, int]:
        saved: list[int] = []
        with LargestTensor() as largest:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
                value = loss()
            value.backward()
        return largest.numbers, sum(saved)

    created, saved = largest_and_saved(lambda: chunked_cross_entropy(hidden, head, target, chunk=chunk).sum)
    full, all_kept = largest_and_saved(lambda: F.cross_entropy(head(hidden), target, reduction="sum"))
    assert created == max(chunk * message, tokens * width)
    assert full == tokens * message
    assert saved < tokens * width + message * (width + 1) + 5 * tokens
    assert all_kept > tokens * message


def test_a_second_derivative_is_refused():
    hidden, head, target = parts()
    with pytest.raises(InvalidModel, match="cannot be differentiated twice"):
        torch.autograd.grad(chunked_cross_entropy(hidden, head, target).sum, hidden, create_graph=True)


def test_without_a_gradient_nothing_is_saved():
    hidden, head, target = parts()
    with torch.no_grad():
        assert chunked_cross_entropy(hidden, head, target).sum.grad_fn is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(2, 7, WORDS)}, "not logits"),
        ({"target": torch.zeros(14, dtype=torch.int64)}, "one word index per token"),
        ({"target": torch.zeros(2, 7)}, "The target is float32"),
        ({"weight": torch.zeros(3)}, "there are 11 words"),
        ({"label_smoothing": 1.5}, r"label_smoothing is 1\.5"),
        ({"chunk": 0}, r"chunk is 0\."),
        ({"chunk": -3}, r"chunk is -3\."),
    ],
)
def test_invalid_arguments_are_refused(change: dict[str, Any], message: str):
    hidden, head, target = parts()
    arguments = {"hidden": hidden, "head": head, "target": target} | change
    with pytest.raises(InvalidData, match=message):
        chunked_cross_entropy(**arguments)
