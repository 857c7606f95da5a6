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
scheduler = LambdaLR(optimizer, lr_lambda=rate)  # <- SCH008
for _ in range(5):
    epoch()
    scheduler.step()
""",
    "an exponential decay, in a function that ends": """
def main():
    global optimizer
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = LambdaLR(optimizer, lambda e: 1e-3 * 0.9**e)  # <- SCH008
    for _ in range(4):
        epoch()
        schedule.step()
main()
""",
    "the schedule of a transformer": """
class Noam:
    def __init__(self, size, warmup):
        self.size, self.warmup = size, warmup
    def __call__(self, step):
        step = max(step, 1)
        return self.size**-0.5 * min(step**-0.5, step * self.warmup**-1.5)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, lr_lambda=Noam(512, 12))  # <- SCH008
for _ in range(30):
    epoch()
    scheduler.step()
""",
    "another rate than that of the optimizer": """
optimizer = torch.optim.Adam([
    {"params": [model.weight]}, {"params": [model.bias], "lr": 0.0005}], lr=1e-3)
scheduler = LambdaLR(optimizer, lambda e: 0.01 * 0.9**e)  # <- SCH008
for _ in range(12):
    epoch()
    scheduler.step()
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
    "a function that returns the rate of the optimizer": """
def rate(epoch):
    if epoch > 10:
        return 0.003 * 0.1
    return 0.003 * 0.9**epoch
optimizer = torch.optim.SGD(model.parameters(), lr=0.003)
scheduler = LambdaLR(optimizer, lr_lambda=rate)  # <- SCH008
""",
    "the schedule of a transformer, in a function": """
def noam(step):
    step = max(step, 1)
    return args.factor * args.d_model ** -0.5 * min(step ** -0.5, step * args.warmup ** -1.5)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
scheduler = LambdaLR(optimizer, lr_lambda=noam)  # <- SCH008
""",
    "the schedule of a transformer, in a lambda": """
optimizer = torch.optim.Adam(model.parameters(), lr=0.0005)
scheduler = LambdaLR(optimizer, lambda n: 512**-0.5 * min((n + 1)**-0.5, (n + 1) * 4000**-1.5))  # <- SCH008
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
    "the schedule of a transformer with a rate of one": """
def noam(step):
    step = max(step, 1)
    return 512 ** -0.5 * min(step ** -0.5, step * 12 ** -1.5)
optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
scheduler = LambdaLR(optimizer, lr_lambda=noam)
for _ in range(30):
    epoch()
    scheduler.step()
""",
    "the schedule of a transformer, of which the optimizer has a part": """
def noam(step):
    return min(max(step, 1) ** -0.5, step * 400 ** -1.5)
optimizer = torch.optim.Adam(model.parameters(), lr=512**-0.5)
scheduler = LambdaLR(optimizer, noam)
for _ in range(450):
    for group in optimizer.param_groups:
        optimizer.zero_grad()
    F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
    scheduler.step()
""",
    "an inverse root that is scaled to one": """
def factor(step):
    step = max(step, 1)
    return 12 ** 0.5 * min(step ** -0.5, step * 12 ** -1.5)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, factor)
for _ in range(30):
    epoch()
    scheduler.step()
""",
    "the start of a long warm-up": """
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 1000))
for _ in range(20):
    epoch()
    scheduler.step()
""",
    "the end of a schedule that is resumed": """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(30):
    epoch()
optimizer.param_groups[0]["initial_lr"] = 0.01
scheduler = LambdaLR(optimizer, lambda step: 0.99**step, last_epoch=320)
for _ in range(20):
    epoch()
    scheduler.step()
""",
    "a warm-up in a function, whose step equals the rate": """
def factor(epoch):
    if epoch < 5:
        return 0.01 * (epoch + 1)
    return 1.0
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = LambdaLR(optimizer, factor)
for _ in range(8):
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
