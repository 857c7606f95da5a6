"""A parameter that is changed in place while gradients are recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueloop.core.findings import ExplainedError


@pytest.mark.parametrize("change", ["model.weight += 1", "model.weight.mul_(2)", "model.weight.zero_()"])
def test_a_weight(assert_explained: Callable[..., ExplainedError], change: str):
    script = f"import torch\nmodel = torch.nn.Linear(4, 1)\n{change}  # <- raised\n"
    assert_explained(
        script,
        "leaf-changed-in-place",
        "`model.weight` is a leaf tensor that requires a gradient",
        "with torch.no_grad()",
    )


def test_an_element_of_a_tensor(assert_explained: Callable[..., ExplainedError]):
    script = "import torch\nw = torch.ones(3, requires_grad=True)  # <- created\nw[0] = 5  # <- raised\n"
    assert_explained(script, "leaf-changed-in-place", "`w` is a leaf tensor that requires a gradient")
