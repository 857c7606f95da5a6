"""The terms of a minimised value, with their signs."""

import ast
from collections.abc import Iterator

import pytest

from trueloop.analysis.project import Module
from trueloop.analysis.queries.signed_terms import jointly_minimised_terms, may_ascend, minimised_terms
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import SourceText


def parsed(text: str) -> SourceFile:
    return SourceFile([Module("train.py", SourceText(text), ast.parse(text))], [], {})


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("(a - x).backward()", -1),
        ("loss = -(a - 2 * x.mean())\nloss.backward()", 1),
        ("loss = a\nloss -= 0.1 * x\nloss.backward()", -1),
        ("def f(v):\n    return -v.sum() / 3\n(f(x) + f(y)).backward()", -1),
        ("c = -0.5\n(c * x).backward()", -1),
        ("scaler.scale(torch.stack([a, -x])).backward()", -1),
        ("accelerator.backward(torch.max(x, b))", 1),
        ("parts = []\nparts.append(torch.neg(x))\nsum(parts).backward()", -1),
        ("def training_step(self, batch):\n    return a - x", -1),
        ("total_loss = a - masked_mean(x, mask)", -1),
        ("t = {'a': a, 'b': -x}\nsum(t.values()).backward()", -1),
        ("t = dict(a=a, b=-x)\ntorch.stack(list(t.values())).sum().backward()", -1),
        ("t = {'a': a}\nt['b'] = -x.mean()\nsum([*t.values()]).backward()", -1),
        ("t = {'a': a, 'b': -x}\nsum(v for v in t.values()).backward()", -1),
        ("t = {'a': a, 'b': -x}\nsum(t[k] for k in t).backward()", -1),
        ("t = {'a': a, 'b': -x}\nw = {'a': 1, 'b': 0.1}\nsum(w[k] * v for k, v in t.items()).backward()", -1),
        ("t = {'a': a, 'b': -x}\nloss = 0\nfor v in t.values():\n    loss = loss + v\nloss.backward()", -1),
        ("t = {'a': a, 'b': -x}\nloss = 0\nfor k, v in t.items():\n    loss += v\nloss.backward()", -1),
        ("def f():\n    return {'a': a, 'b': -x}\nt = f()\nsum(t.values()).backward()", -1),
        ("t = {'a': -x, 'b': x}\n(a + 2 * t['b']).backward()", 1),
        ("t = {'a': a, 'b': -x}\nw = {'a': 1,\n 'b': -0.1}\nsum(w[k] * v for k, v in t.items()).backward()", 0),
        ("t = {'a': a, 'b': x}\n(a - t['a']).backward()", 0),
        ("(a * x.exp()).backward()", 0),
        ("(a - x.detach()).backward()", 0),
    ],
)
def test_the_sign_of_a_term(text: str, sign: int):
    def signs() -> Iterator[int]:
        for terms in minimised_terms(parsed(text)):
            yield from {each.sign for each in terms if ast.unparse(each.node) == "x"}

    assert list(signs()) == ([sign] if sign else [])


def test_a_term_knows_the_operand_of_its_sum():
    (terms,) = minimised_terms(parsed("e = d.entropy()\nloss = a + 0.1 * e.mean()\nloss.backward()"))
    assert {ast.unparse(each.added) for each in terms if "entropy" in ast.unparse(each.node)} == {"0.1 * e.mean()"}


def test_an_argument_of_backward_that_has_no_value_of_its_own():
    text = "def f(loss, sign):\n    loss.backward(sign)\n    f(loss, sign)\n"
    assert list(jointly_minimised_terms(parsed(text))) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Adam(p, maximize=True)", True),
        ("w.data += lr * w.grad", True),
        ("class GradientReversal: pass", True),
        ("Adam(p, maximize=False)", False),
        ("total += grad_norm", False),
    ],
)
def test_programs_that_may_ascend(text: str, expected: bool):
    assert may_ascend(parsed(text)) is expected
