"""SCH008: the function of a LambdaLR returns a learning rate, not a factor."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
x = torch.randn(96, 6)
model = nn.Linear(6, 1)
def epoch():
    for part in torch.randperm(96).split(16):
        optimizer.zero_grad()
        F.mse_loss(model(x[part]), x[part].sum(1, keepdim=True)).backward()
        optimizer.step()
"""

RUN = {
    "a table of rates": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
def rate(epoch):
    return 0.01 if epoch < 3 else 0.001
scheduler = LambdaLR(optimizer, lr_lambda=rate)
for _ in range(5):
    epoch()
    scheduler.step()  # <- SCH008
""",
    "an exponential decay, in a function that ends": """
def main():
    global optimizer
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = LambdaLR(optimizer, lambda e: 1e-3 * 0.9**e)
    for _ in range(4):
        epoch()
        schedule.step()  # <- SCH008
main()
""",
}

LINT = {
    "the name that the optimizer gets": """
lr = 0.1
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
scheduler = LambdaLR(optimizer, lambda epoch: 0.95**epoch * lr)  # <- SCH008
""",
    "a setting": """
def build(model, args):
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    return optimizer, LambdaLR(optimizer, lambda step: args.lr * min(1.0, (step + 1) / args.warmup))  # <- SCH008
def train(model, loader, args):
    optimizer, scheduler = build(model, args)
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a), b).backward()
        optimizer.step()
        scheduler.step()
""",
}

CORRECT = {
    "a factor": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = LambdaLR(optimizer, lambda e: 0.95**e)
for _ in range(5):
    epoch()
    scheduler.step()
""",
    "a warm-up that starts at the same number": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = LambdaLR(optimizer, lambda e: min(1.0, (e + 1) / 10))
for _ in range(12):
    epoch()
    scheduler.step()
""",
    "rates, and an optimizer with a rate of one": """
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
scheduler = LambdaLR(optimizer, lambda e: 0.01 * 0.9**e)
for _ in range(5):
    epoch()
    scheduler.step()
""",
    "the quotient of two rates": """
lr, lowest = 0.1, 0.01
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
scheduler = LambdaLR(optimizer, lambda e: max(lowest / lr, 0.9**e))
for _ in range(5):
    epoch()
    scheduler.step()
""",
}


@pytest.mark.parametrize("script", RUN.values(), ids=RUN)
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "multiplies" in run_reports(HEAD + script).findings[0].message


@pytest.mark.parametrize("script", LINT.values(), ids=LINT)
def test_lint_reports_the_marked_line(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script: str):
    lint_is_clean(HEAD + script)
