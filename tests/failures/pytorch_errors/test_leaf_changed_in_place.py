"""A parameter that is overwritten while gradients are recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueloop.core.findings import ExplainedError


@pytest.mark.parametrize("change", ["model.weight += 1", "model.weight.mul_(2)", "model.weight.zero_()"])
def test_a_weight(explained: Callable[..., ExplainedError], change: str):
    script = f"import torch\nmodel = torch.nn.Linear(4, 1)\n{change}  # <- raised\n"
    explained(script, "leaf-changed-in-place", "`model.weight` requires a gradient", "with torch.no_grad()")


def test_a_row_of_one(explained: Callable[..., ExplainedError]):
    script = "import torch\nw = torch.ones(3, requires_grad=True)  # <- made\nw[0] = 5  # <- raised\n"
    explained(script, "leaf-changed-in-place", "`w` requires a gradient")
