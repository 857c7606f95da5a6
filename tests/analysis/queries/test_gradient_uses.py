"""Uses of gradients in source code."""

import ast

import pytest

from trueloop.analysis.queries.gradient_uses import uses_gradients


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("p.grad.norm()", True),
        ("getattr(p, 'grad')", True),
        ("p.register_hook(f)", True),
        ("torch.autograd.grad(a, b)", True),
        ("print(clip_grad_norm_(ps, 1))", True),
        ("n = clip_grad_norm_(ps, 1)\nprint(n)", True),
        ("n = clip_grad_norm_(ps, 1)", False),
        ("n = clip_grad_norm_(ps, 1)\ndef f(n):\n    return n", False),
        ("clip_grad_norm_(ps, 1)", False),
        ("with torch.no_grad():\n    o.zero_grad()\n    print(x.grad_fn)", False),
    ],
)
def test_gradients_that_are_used(text, used):
    assert uses_gradients({"a.py": ast.parse(text)}) is used
