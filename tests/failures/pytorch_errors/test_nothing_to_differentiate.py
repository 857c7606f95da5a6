"""A loss without a graph: each reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueloop.core.findings import ExplainedError

MODEL = "import torch\nmodel = torch.nn.Linear(4, 1)\nx = torch.randn(8, 4)\n"


def test_gradients_disabled(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        MODEL
        + """
with torch.no_grad():
    out = model(x)
loss = out.square().mean()  # <- created
loss.backward()  # <- raised
""",
        "nothing-to-differentiate",
        "gradients were disabled in the latest forward pass (torch.no_grad()",
    )
    assert [(site.line, words) for site, words in explanation.other_locations] == [
        (6, "this forward pass ran without gradients")
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("torch.tensor(out.mean().item())", "`torch.tensor(...)` copies values"),
        ("out.mean().detach()", "`.detach()` removes it from the graph"),
        ("out.argmax(1).float()", "`argmax` has no gradient"),
        ("out.mean().data", "`.data` removes it from the graph"),
    ],
)
def test_a_detached_value(assert_explained: Callable[..., ExplainedError], value: str, words: str):
    script = f"{MODEL}out = model(x)\nloss = {value}  # <- created\nloss.backward()  # <- raised\n"
    assert_explained(script, "nothing-to-differentiate", words)


def test_all_parameters_frozen(assert_explained: Callable[..., ExplainedError]):
    script = f"{MODEL}model.requires_grad_(False)\nmodel(x).mean().backward()  # <- raised\n"
    assert_explained(script, "nothing-to-differentiate", "all parameters of Linear have requires_grad=False")


def test_a_frozen_teacher_is_not_named(assert_explained: Callable[..., ExplainedError]):
    explanation = assert_explained(
        MODEL
        + """
teacher = torch.nn.Linear(4, 1).requires_grad_(False)
model(x)
with torch.no_grad():
    goal = teacher(x)
loss = (goal - 1).square().mean()  # <- created
loss.backward()  # <- raised
""",
        "nothing-to-differentiate",
        "does not depend on any parameter that requires a gradient.",
    )
    assert "teacher" not in explanation.meaning.lower()
    assert not explanation.other_locations
