"""A loss without a graph: which of the reasons it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueloop.core.findings import ExplainedError

MODEL = "import torch\nmodel = torch.nn.Linear(4, 1)\nx = torch.randn(8, 4)\n"


def test_gradients_switched_off(explained: Callable[..., ExplainedError]):
    explanation = explained(
        MODEL
        + """
with torch.no_grad():
    out = model(x)
loss = out.square().mean()  # <- made
loss.backward()  # <- raised
""",
        "nothing-to-differentiate",
        "gradients switched off (torch.no_grad()",
    )
    assert [(site.line, words) for site, words in explanation.other_locations] == [(6, "this forward ran without gradients")]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("torch.tensor(out.mean().item())", "`torch.tensor(...)` copies values"),
        ("out.mean().detach()", "`.detach()` takes it out of the graph"),
        ("out.argmax(1).float()", "`argmax` has no gradient"),
        ("out.mean().data", "`.data` takes it out of the graph"),
    ],
)
def test_a_value_taken_out(explained: Callable[..., ExplainedError], made: str, words: str):
    script = f"{MODEL}out = model(x)\nloss = {made}  # <- made\nloss.backward()  # <- raised\n"
    explained(script, "nothing-to-differentiate", words)


def test_everything_frozen(explained: Callable[..., ExplainedError]):
    script = f"{MODEL}model.requires_grad_(False)\nmodel(x).mean().backward()  # <- raised\n"
    explained(script, "nothing-to-differentiate", "no parameter of Linear has requires_grad set")


def test_a_frozen_teacher_is_not_blamed(explained: Callable[..., ExplainedError]):
    explanation = explained(
        MODEL
        + """
teacher = torch.nn.Linear(4, 1).requires_grad_(False)
model(x)
with torch.no_grad():
    goal = teacher(x)
loss = (goal - 1).square().mean()  # <- made
loss.backward()  # <- raised
""",
        "nothing-to-differentiate",
        "leads back to no parameter that wants a gradient.",
    )
    assert "teacher" not in explanation.meaning.lower()
    assert not explanation.other_locations
