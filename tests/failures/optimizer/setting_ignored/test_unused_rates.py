"""OPT007: new learning rates that nothing stores, and functions that set a rate and are never called."""

import pytest

HEAD = """
import torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """
for epoch in range(9):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).mean().backward()
    optimizer.step()
"""
FAULTY = {
    "not stored": HEAD + LOOP + """
    if epoch == 5:
        for group in optimizer.param_groups:
            lr = group["lr"] * 0.1  # <- OPT007
""",
    "not stored in a function": HEAD + """
def decay(opt, factor):
    for g in opt.param_groups:
        new_rate = factor * g["lr"]  # <- OPT007
""" + LOOP + """
    decay(optimizer, 0.5)
""",
    "not stored in a method": """
import torch
class Trainer:
    def lower(self):
        for param_group in self.optimizer.param_groups:
            rate = max(param_group["lr"], 0) / 10  # <- OPT007
    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.model(x).mean().backward()
            self.optimizer.step()
        self.lower()
""",
    "never called": HEAD + """
def adjust_learning_rate(optimizer, epoch):  # <- OPT007
    lr = 0.1 * 0.1 ** (epoch // 3)
    for group in optimizer.param_groups:
        group["lr"] = lr
""" + LOOP,
    "never called by main": """
import torch
def set_lr(opt, value):  # <- OPT007
    opt.param_groups[0]["lr"] = value
def main():
    model = torch.nn.Linear(3, 1)
    opt = torch.optim.Adam(model.parameters())
    for step in range(9):
        opt.zero_grad()
        model(torch.randn(5, 3)).mean().backward()
        opt.step()
if __name__ == "__main__":
    main()
""",
}  # fmt: skip
CORRECT = {
    "stored": HEAD + LOOP + """
    for group in optimizer.param_groups:
        lr = group["lr"] * 0.9
        group["lr"] = lr
""",
    "printed": HEAD + LOOP + """
    for group in optimizer.param_groups:
        in_thousandths = group["lr"] * 1000
        print(in_thousandths)
""",
    "stored by a method": HEAD + LOOP + """
    for group in optimizer.param_groups:
        lr = group["lr"] * 0.9
        group.update({"lr": lr})
""",
    "read after the loop": HEAD + LOOP + """
    for group in optimizer.param_groups:
        lr = group["lr"] * 1.0
    print(epoch, lr)
""",
    "called": HEAD + """
def adjust_learning_rate(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + epoch)
""" + LOOP + """
    adjust_learning_rate(optimizer, epoch)
""",
    "given as a callback": HEAD + """
def adjust_learning_rate(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + epoch)
callbacks = [adjust_learning_rate]
""" + LOOP + """
    for call in callbacks:
        call(optimizer, epoch)
""",
    "another function is used": HEAD + """
def step_decay(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * 0.5 ** epoch
def linear_decay(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 - 0.01 * epoch
""" + LOOP + """
    linear_decay(optimizer, epoch)
""",
    "a scheduler is used": HEAD + """
def adjust_learning_rate(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + epoch)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
""" + LOOP + """
    scheduler.step()
""",
    "a module of helpers": """
import torch
def adjust_learning_rate(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 / (1 + epoch)
def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
""",
}  # fmt: skip


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_unused_rates(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_rates_that_are_used(lint_is_clean, script):
    lint_is_clean(script, "OPT007")
