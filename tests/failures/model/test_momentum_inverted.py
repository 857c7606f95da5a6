"""MDL005: the momentum of another framework, and correct programs that look like it."""

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
    "small": CHAIN.format("nn.BatchNorm1d(8, momentum=1 - 0.99)") + LOOP,
    "the mean over all": CHAIN.format("nn.BatchNorm1d(8, momentum=None)") + LOOP,
    "the latest batch on purpose": CHAIN.format("nn.BatchNorm1d(8, momentum=1.0)") + LOOP,
    "no running statistics": CHAIN.format("nn.BatchNorm1d(8, 1e-5, 0.99, True, False)") + LOOP,
    "none of them, a lazy one's": CHAIN.format("nn.LazyBatchNorm1d(1e-5, 0.99, True, False)") + "model(x)\n" + LOOP,
    "none of them, by name": CHAIN.format("nn.BatchNorm1d(8, momentum=0.999, track_running_stats=False)") + LOOP,
    "a teacher's": "class Teacher(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.momentum, self.net = 0.99, nn.Linear(6, 1)\n    def forward(self, x):\n        return self.net(x)\n"
    "model = Teacher()\n" + LOOP,
}

BROKEN = {
    "a chain": "model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.99), nn.Linear(8, 1))  # T"
    + LOOP.replace("backward()", "backward()  # R"),
    "a class, by position": """
class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 1)
        self.norm = nn.BatchNorm1d(width, 1e-3, 0.997)  # T
    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu())
model = Net()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)  # R
    (nn.functional.mse_loss(out.float(), y) / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "a lazy one's, by position": CHAIN.format("nn.LazyBatchNorm1d(1e-3, 0.99)").strip() + "  # T\nmodel(x)  # R" + LOOP,
    "a setting of a dictionary": "config = {'BN_MOMENTUM': 0.99}\n"
    + CHAIN.format("nn.BatchNorm1d(8, momentum=config['BN_MOMENTUM'])").strip()
    + "  # T\nmodel(x)  # R"
    + LOOP,
    "a constant, a helper": """
BN_MOMENTUM = 0.9
def block(n, m):
    return nn.Sequential(
        nn.Linear(n, m),
        nn.BatchNorm1d(m, momentum=BN_MOMENTUM),  # T
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
    "two optimizers, a closure, pictures": """
from torch.nn import BatchNorm2d
body = nn.Sequential(nn.Conv2d(1, 4, 3), BatchNorm2d(4, momentum=0.95), nn.Flatten())  # T
head = nn.Linear(16, 1)
model = nn.Sequential(body, head)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (body, head)]
pictures = torch.randn(8, 1, 4, 4)
def closure():
    loss = model(pictures).square().mean()  # R
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
    lint_is_clean(HEAD + script, "MDL005")


@pytest.mark.parametrize("name", BROKEN)
def test_run_reports_the_call_and_lint_the_layer(run_reports, lint_reports, name):
    script = HEAD + BROKEN[name]
    (found,) = run_reports(script.replace("# R", "# <- MDL005")).findings
    assert "the latest batch makes up" in found.message
    lint_reports(script.replace("# T", "# <- MDL005"), fixes="BN_MOMENTUM" not in script)
