"""GRD029: gradients are clipped after each micro-batch of an accumulation window."""

import pytest

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(64, 8)
y = 5 * x.sum(1, keepdim=True)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
clip = nn.utils.clip_grad_norm_
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 4, shuffle=True)
def cost(a, b):
    return nn.functional.mse_loss(net(a), b) / 4
"""
FAULTY = {
    "remainder": """
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        cost(a, b).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)  # <- GRD029
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
""",
    "by value, in a function": """
def accumulate(a, b):
    cost(a, b).backward()
    nn.utils.clip_grad_value_(net.parameters(), 0.01)  # <- GRD029
def update():
    opt.step()
    opt.zero_grad()
K = 4
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        accumulate(a, b)
        if i % K == K - 1:
            update()
""",
    "inner loop": """
batches = [(x[i:i + 4], y[i:i + 4]) for i in range(0, 64, 4)]
for step in range(6):
    opt.zero_grad()
    for micro in range(4):
        a, b = batches[(4 * step + micro) % 16]
        cost(a, b).backward()
        clip(net.parameters(), 0.1)  # <- GRD029
    opt.step()
""",
    "counter": """
pending = 0
for epoch in range(2):
    for a, b in loader:
        cost(a, b).backward()
        clip(net.parameters(), max_norm=0.1)  # <- GRD029
        pending += 1
        if pending == 4:
            opt.step()
            opt.zero_grad()
            pending = 0
""",
    "class": """
class Trainer:
    def __init__(self, model, every):
        self.model, self.every = model, every
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    def fit(self, batches):
        for number, (a, b) in enumerate(batches, 1):
            (nn.functional.mse_loss(self.model(a), b) / self.every).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)  # <- GRD029
            if number % self.every == 0 or number == len(batches):
                self.optimizer.step()
                self.optimizer.zero_grad()
trainer = Trainer(net, 4)
trainer.fit(loader)
""",
    "continue, cleared before": """
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        if i % 4 == 0:
            opt.zero_grad()
        cost(a, b).backward()
        clip(net.parameters(), 0.1)  # <- GRD029
        if (i + 1) % 4 != 0:
            continue
        opt.step()
""",
}
CORRECT = {
    "under the condition": """
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        cost(a, b).backward()
        if (i + 1) % 4 == 0:
            clip(net.parameters(), 0.1)
            opt.step()
            opt.zero_grad()
""",
    "every batch is a window": """
K = 1
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        cost(a, b).backward()
        clip(net.parameters(), 0.1)
        if (i + 1) % K == 0:
            opt.step()
            opt.zero_grad()
""",
    "clipped per sample": """
for epoch in range(2):
    for a, b in loader:
        sums = [torch.zeros_like(p) for p in net.parameters()]
        for one, target in zip(a, b):
            nn.functional.mse_loss(net(one), target).backward()
            clip(net.parameters(), 0.1)
            for total, p in zip(sums, net.parameters()):
                total += p.grad
            net.zero_grad()
        for total, p in zip(sums, net.parameters()):
            p.grad = total / len(a)
        opt.step()
        opt.zero_grad()
""",
    "another model": """
other = nn.Linear(8, 1)
opt2 = torch.optim.SGD(other.parameters(), lr=0.01)
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        opt2.zero_grad()
        nn.functional.mse_loss(other(a), b).backward()
        clip(other.parameters(), 0.1)
        opt2.step()
        cost(a, b).backward()
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
""",
    "measured": """
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        cost(a, b).backward()
        norm = clip(net.parameters(), float("inf"))
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
""",
    "unless the norm is not finite": """
for epoch in range(2):
    for a, b in loader:
        opt.zero_grad()
        cost(a, b).backward()
        norm = clip(net.parameters(), 0.1)
        if torch.isfinite(norm):
            opt.step()
""",
    "after an inner loop": """
for epoch in range(2):
    for a, b in loader:
        opt.zero_grad()
        for one, target in zip(a.split(2), b.split(2)):
            cost(one, target).backward()
        clip(net.parameters(), 0.1)
        opt.step()
""",
    "updates in an inner loop": """
for epoch in range(2):
    for a, b in loader:
        for repeat in range(3):
            opt.zero_grad()
            cost(a, b).backward()
            clip(net.parameters(), 0.1)
            opt.step()
""",
    "only the first loss": """
for step in range(12):
    opt.zero_grad()
    cost(x[:32], y[:32]).backward()
    clip(net.parameters(), 0.1)
    cost(x[32:], y[32:]).backward()
    opt.step()
""",
    "scaler": """
scaler = torch.amp.GradScaler("cpu", enabled=False)
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        scaler.scale(cost(a, b)).backward()
        if (i + 1) % 4 == 0:
            scaler.unscale_(opt)
            clip(net.parameters(), 0.1)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_and_lint_report_the_clipping(run_reports, lint_reports, script):
    run_reports(HEAD + script)
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, lint_is_clean, script):
    run_is_clean(HEAD + script)
    lint_is_clean(HEAD + script, "GRD029")
