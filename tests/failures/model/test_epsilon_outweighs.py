"""MDL007: a large number as eps, and correct programs that look like it."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
x = torch.randn(32, 6)
y = x.sum(1, keepdim=True)
"""
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for _ in range(2):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
CHAIN = "model = nn.Sequential(nn.Linear(6, 8), {}, nn.ReLU(), nn.Linear(8, 1))\n"

CORRECT = {
    "the default": CHAIN.format("nn.BatchNorm1d(8)") + LOOP,
    "another framework's": CHAIN.format("nn.BatchNorm1d(8, 1e-3, 0.01)") + LOOP,
    "a hundredth": CHAIN.format("nn.BatchNorm1d(8, eps=0.01)") + LOOP,
    "a momentum": CHAIN.format("nn.BatchNorm1d(8, momentum=0.2)") + LOOP,
    "a layer's normalisation": CHAIN.format("nn.LayerNorm(8, 0.1)") + LOOP,
    "groups": CHAIN.format("nn.GroupNorm(4, 8)") + LOOP,
    "an optimizer's": CHAIN.format("nn.BatchNorm1d(8)")
    + LOOP.replace("SGD(model.parameters(), lr=0.01, momentum=0.9)", "Adam(model.parameters(), lr=0.01, eps=0.1)"),
    "a class of the same name": "class BatchNorm(nn.Module):\n    def __init__(self, width, scale):\n"
    "        super().__init__()\n        self.net = nn.Linear(6, 1)\n    def forward(self, x):\n"
    "        return self.net(x)\nmodel = BatchNorm(8, 0.8)\n" + LOOP,
}

BROKEN = {
    "a chain": "model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, 0.8), nn.Linear(8, 1))  # T"
    + LOOP.replace("backward()", "backward()  # R"),
    "a number of channels": """
class Branch(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, width, 3), nn.Linear(width * 4, 1)
        self.norm = nn.BatchNorm2d(width, 8)  # T
    def forward(self, x):
        return self.last(self.norm(self.first(x)).flatten(1))
model, pictures = Branch(8), torch.randn(16, 1, 4, 4)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    out = model(pictures)  # R
    (out.square().mean() / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "a constant, a helper": """
BN = 0.99
def block(n, m):
    return nn.Sequential(
        nn.Linear(n, m),
        nn.BatchNorm1d(m, eps=BN),  # T
        nn.ReLU())
model = nn.Sequential(block(6, 8), block(8, 8), nn.Linear(8, 1))
def update(optimizer):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()  # R
    optimizer.step()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
update(optimizer)
update(optimizer)
""",
    "two optimizers, a closure, lazy": """
from torch.nn import LazyBatchNorm1d
body = nn.Sequential(nn.Linear(6, 4), LazyBatchNorm1d(0.9))  # T
with torch.no_grad():
    body(x)
head = nn.Linear(4, 1)
model = nn.Sequential(body, head)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (body, head)]
def closure():
    loss = model(x).square().mean()  # R
    loss.backward()
    return loss
for _ in range(2):
    closure()
    for each in optimizers:
        each.step()
        each.zero_grad()
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, lint_is_clean, script):
    run_is_clean(HEAD + script)
    lint_is_clean(HEAD + script, "MDL007")


@pytest.mark.parametrize("name", BROKEN)
def test_run_reports_the_call_and_lint_the_layer(run_reports, lint_reports, name):
    script = HEAD + BROKEN[name]
    (found,) = run_reports(script.replace("# R", "# <- MDL007")).findings
    assert "features with variance 1 are divided by" in found.message
    lint_reports(script.replace("# T", "# <- MDL007"))


def test_lint_accepts_a_layer_that_the_caller_chooses(lint_is_clean):
    lint_is_clean(
        """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, width, norm_layer=None, num_splits=64):
        super().__init__()
        if norm_layer is None:
            norm_layer = nn.BatchNorm2d
        self.norm = norm_layer(width, num_splits)
model = Block(8)
""",
        "MDL007",
    )
