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
    "a function that reads the optimizer": TWO
    + """
def adjust_learning_rate(epoch):
    optimizer.param_groups[0]["lr"] = 0.01 * 0.5 ** (epoch // 2)  # <- OPT007


for epoch in range(4):
    adjust_learning_rate(epoch)
    update(optimizer)
""",
    "an argument": TWO
    + """
def decay(opt, factor):
    opt.param_groups[0]["lr"] *= factor  # <- OPT007


def main():
    for epoch in range(4):
        update(optimizer)
        decay(optimizer, 0.5)


main()
""",
    "a list of groups": """
groups = []
groups.append({"params": model[0].parameters()})
groups.append({"params": model[2].parameters(), "weight_decay": 0})
optimizer = torch.optim.AdamW(groups, lr=1e-3)
step = 0
while step < 10:
    group = optimizer.param_groups[0]
    group["lr"] = 1e-3 * (1 - step / 10)  # <- OPT007
    update(optimizer)
    step += 1
""",
    "dict()": """
def make():
    return torch.optim.Adam(
        [dict(params=model[0].parameters()), dict(params=model[2].parameters(), lr=0.01)], lr=0.001
    )


optimizer = make()
for epoch in range(3):
    update(optimizer)
    if epoch == 1:
        optimizer.param_groups[0]["lr"] /= 10  # <- OPT007
""",
    "a group added": """
optimizer = torch.optim.Adam(model[0].parameters(), lr=0.1)
optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.01})
for epoch in range(3):
    update(optimizer)
    if epoch == 1:
        optimizer.param_groups[0].update(lr=0.01)  # <- OPT007
""",
    "a class": """
class Learner:
    def __init__(self):
        self.opt = torch.optim.SGD([{"params": p, "lr": 0.1} for p in model.parameters()])

    def fit(self):
        for epoch in range(4):
            self.opt.param_groups[0]["lr"] = 0.1 / (1 + epoch)  # <- OPT007
            self.opt.zero_grad()
            model(torch.randn(16, 6)).mean().backward()
            self.opt.step()
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
    "all groups first": TWO
    + """
for epoch in range(4):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    optimizer.param_groups[0]["lr"] *= 1.0
    update(optimizer)
""",
    "both groups first": TWO
    + """
for epoch in range(4):
    optimizer.param_groups[0]["lr"] *= 0.5
    optimizer.param_groups[1]["lr"] *= 0.5
    update(optimizer)
""",
    "one group first": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    optimizer.param_groups[0]["lr"] *= 0.5
    update(optimizer)
""",
    "one group in a list": """
optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": 0.1}])
for epoch in range(4):
    optimizer.param_groups[0]["lr"] *= 0.5
    update(optimizer)
""",
    "read only": TWO
    + """
for epoch in range(4):
    update(optimizer)
    print(optimizer.param_groups[0]["lr"])
""",
    "a backbone": TWO
    + """
def unfreeze_backbone(rate):
    optimizer.param_groups[0]["lr"] = rate


for epoch in range(4):
    if epoch == 2:
        unfreeze_backbone(0.001)
    update(optimizer)
""",
    "a comment": TWO
    + """
for epoch in range(4):
    # warm up the encoder
    optimizer.param_groups[0]["lr"] = 0.01 * (epoch + 1) / 4
    update(optimizer)
""",
    "set once": TWO
    + """
optimizer.param_groups[0]["lr"] = 0.05
for epoch in range(4):
    update(optimizer)
""",
    "unknown groups": """
def fit(optimizer, epochs):
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] *= 0.5
        update(optimizer)
""",
    "a scheduler": TWO
    + """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for epoch in range(4):
    if epoch == 0:
        optimizer.param_groups[0]["lr"] *= 0.5
    update(optimizer)
    scheduler.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_first_group(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "OPT007")
