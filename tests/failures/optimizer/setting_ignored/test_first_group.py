"""OPT007: only the first of several parameter groups gets a new learning rate."""

import pytest

HEAD = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
def update(optimizer):
    optimizer.zero_grad()
    model(torch.randn(16, 6)).pow(2).mean().backward()
    optimizer.step()
"""
TWO = """
optimizer = torch.optim.SGD([
    {"params": model[0].parameters(), "lr": 0.01},
    {"params": model[2].parameters(), "lr": 0.1},
], momentum=0.9)
"""
FAULTY = {
    "in the loop": TWO
    + """
for epoch in range(3):
    update(optimizer)
    optimizer.param_groups[0]["lr"] *= 0.1  # <- OPT007
""",
    "in a function": TWO
    + """
def adjust(opt, epoch):
    rate = 0.1 * 0.1 ** (epoch // 3)
    opt.param_groups[0]["lr"] = rate  # <- OPT007
for epoch in range(3):
    adjust(optimizer, epoch)
    update(optimizer)
""",
    "groups in a variable, in a class": """
class Trainer:
    def __init__(self):
        groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01)
    def decay(self):
        self.optimizer.param_groups[0]["lr"] /= 2  # <- OPT007
""",
}
CORRECT = {
    "all groups": TWO
    + """
for epoch in range(3):
    update(optimizer)
    for group in optimizer.param_groups:
        group["lr"] *= 0.1
    optimizer.param_groups[0]["lr"] *= 0.1
""",
    "both groups": TWO
    + """
for epoch in range(3):
    update(optimizer)
    optimizer.param_groups[0]["lr"] *= 0.1
    optimizer.param_groups[1]["lr"] *= 0.1
""",
    "one group": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    update(optimizer)
    optimizer.param_groups[0]["lr"] *= 0.1
""",
    "a scheduler for the rest": TWO
    + """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for epoch in range(3):
    update(optimizer)
    scheduler.step()
    optimizer.param_groups[0]["lr"] = 0.01
""",
    "another optimizer": TWO
    + """
other = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    update(optimizer)
    update(other)
    other.param_groups[0]["lr"] *= 0.1
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_first_group(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "OPT007")
