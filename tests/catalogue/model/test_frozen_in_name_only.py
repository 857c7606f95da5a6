"""MDL006: modules frozen in name only, and everything that only looks like it."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
x = torch.randn(32, 6)
y = x.sum(1, keepdim=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Linear(8, 1)
        self.token = nn.Parameter(torch.zeros(8))
    def forward(self, x):
        return self.fc(self.body(x) + self.token)
model = Net()
"""
LOOP = """
for _ in range(2):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()  # R
    optimizer.step()
"""
ALL = "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
WANTED = "optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)\n"

QUIET = {
    "the method": "model.body.requires_grad_(False)\n" + WANTED + LOOP,
    "its parameters": "for p in model.body.parameters():\n    p.requires_grad = False\n" + WANTED + LOOP,
    "by name": "for name, p in model.named_parameters():\n    if 'body' in name:\n        p.requires_grad = False\n"
    + WANTED
    + LOOP,
    "a weight of a layer": "model.fc.bias.requires_grad = False\nmodel.token.requires_grad = False\n" + WANTED + LOOP,
    "a setting of its own": """
class Frozen(nn.Module):
    def __init__(self, requires_grad=False):
        super().__init__()
        self.requires_grad = requires_grad
        self.fixed, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
        for p in self.fixed.parameters():
            p.requires_grad = requires_grad
    def forward(self, x):
        return self.last(self.fixed(x))
model = Frozen()
"""
    + WANTED
    + LOOP,
    "a tensor": "mask = torch.ones(32, 1, requires_grad=True)\nmask.requires_grad = False\n" + ALL + LOOP,
}

GUILTY = {
    "one layer": "model.fc.requires_grad = False  # T\n" + ALL + LOOP,
    "every child but the last, in a function": """
def freeze(net: nn.Module):
    for child in list(net.children())[:-1]:
        child.requires_grad = False  # T
freeze(model)
"""
    + ALL
    + LOOP,
    "within a class, under accumulation": """
class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = Net(), nn.Linear(1, 1)
        self.backbone.requires_grad = False  # T
    def forward(self, x):
        return self.head(self.backbone(x))
model = Task()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)  # R
    (nn.functional.mse_loss(out.float(), y) / 2).backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "two optimizers": """
for module in model.body.modules():
    module.requires_grad = False  # T
optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (model.body, model.fc)]
for _ in range(2):
    nn.functional.mse_loss(model(x), y).backward()  # R
    for each in optimizers:
        each.step()
        each.zero_grad()
""",
}


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(quiet, untold, script):
    quiet(HEAD + script)
    untold(HEAD + script, "MDL006")


def test_a_part_that_no_optimizer_is_given_is_not_trained(quiet):
    ran = quiet(HEAD + "model.body.requires_grad = False\noptimizer = torch.optim.SGD([*model.fc.parameters(), "
                "model.token], lr=0.01)\n" + LOOP)  # fmt: skip
    assert "MDL006" not in {found.code for found in ran.findings}


@pytest.mark.parametrize("name", GUILTY)
def test_it_is_found_where_the_model_is_called_and_where_it_is_written(guilty, told, name):
    script = HEAD + GUILTY[name]
    found = guilty(script.replace("# R", "# <- MDL006")).findings[0]
    assert "which modules do not read" in found.message
    told(script.replace("# T", "# <- MDL006"), fixes=True)
