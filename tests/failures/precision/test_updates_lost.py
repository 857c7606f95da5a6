"""PRC008: updates that are smaller than the precision of the weights."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(256, 16)
y = x[:, :4].sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
def train(optimizer, updates=60, dtype=torch.bfloat16):
    for _ in range(updates):
        rows = torch.randint(0, 256, (64,))
        optimizer.zero_grad()
        F.mse_loss(model(x[rows].to(dtype)).float(), y[rows]).backward()
        optimizer.step()  # <- PRC008
"""
FAULTY = {
    "Adam with a small rate": "model.to(torch.bfloat16)\ntrain(torch.optim.AdamW(model.parameters(), lr=1e-5))",
    "SGD": "model.bfloat16()\ntrain(torch.optim.SGD(model.parameters(), lr=1e-5), 70)",
    "float16 weights": """
model.half()
train(torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=1e-7), 60, torch.half)
""",
}
FAULTY_IN_PART = {
    "some updates are large enough": "model.to(torch.bfloat16)\ntrain(torch.optim.SGD(model.parameters(), lr=1e-3))",
    "Adam in a trainer": """
class Trainer:
    def __init__(self, net):
        self.net = net.to(torch.bfloat16)
        self.opt = torch.optim.Adam(self.net.parameters(), lr=1e-4)
    def step(self, x, y):
        self.opt.zero_grad()
        F.mse_loss(self.net(x.to(torch.bfloat16)).float(), y).backward()
        self.opt.step()  # <- PRC008
trainer = Trainer(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
for _ in range(60):
    rows = torch.randperm(256)[:64]
    trainer.step(x[rows], y[rows])
""",
    "after a warm-up": """
model.bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
for _ in range(70):
    rows = torch.randint(0, 256, (64,))
    optimizer.zero_grad()
    F.mse_loss(model(x[rows].bfloat16()).float(), y[rows]).backward()
    optimizer.step()  # <- PRC008
    scheduler.step()
""",
}
CORRECT = {
    "a rate that suits": "model.bfloat16()\ntrain(torch.optim.SGD(model.parameters(), lr=0.05))",
    "Adam with its default rate": "model.bfloat16()\ntrain(torch.optim.Adam(model.parameters()), 120)",
    "a warm-up from zero": """
model.bfloat16()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 100000)
for _ in range(60):
    rows = torch.randint(0, 256, (64,))
    optimizer.zero_grad()
    F.mse_loss(model(x[rows].bfloat16()).float(), y[rows]).backward()
    optimizer.step()
    scheduler.step()
""",
    "an optimizer with the weights in float32": """
model.bfloat16()
class Precise(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            copy = self.state[p].setdefault("master", p.float())
            copy -= 1e-3 * p.grad.float()
            p.copy_(copy)
train(Precise(model.parameters(), lr=1e-3))
""",
    "rounded at random": """
model.bfloat16()
class Random(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            exact = p.float() - 1e-3 * p.grad.float()
            noise = torch.randint(0, 1 << 16, p.shape, dtype=torch.int32)
            p.copy_(((exact.contiguous().view(torch.int32) + noise) & -65536).view(torch.float32))
train(Random(model.parameters(), lr=1e-3))
""",
    "large updates": "model.bfloat16()\ntrain(torch.optim.AdamW(model.parameters(), lr=0.01))",
    "float32": "train(torch.optim.AdamW(model.parameters(), lr=1e-5), dtype=torch.float32)",
    "too few updates": "model.bfloat16()\ntrain(torch.optim.AdamW(model.parameters(), lr=1e-5), 20)",
    "a learning rate of zero": "model.bfloat16()\ntrain(torch.optim.SGD(model.parameters(), lr=0.0))",
    "a copy of the weights in float32": """
model.bfloat16()
masters = [p.detach().float().clone().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.01)
for _ in range(60):
    F.mse_loss(model(x.bfloat16()).float(), y).backward()
    for master, p in zip(masters, model.parameters()):
        master.grad, p.grad = p.grad.float(), None
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, model.parameters()):
            p.copy_(master)
""",
    "rows of an embedding without a gradient": """
table = nn.Embedding(200, 8).bfloat16()
optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
for _ in range(60):
    optimizer.zero_grad()
    table(torch.tensor([1, 2])).float().pow(2).mean().backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_step(run_reports, script: str):
    assert "did not change in 48 updates" in run_reports(HEAD + script).findings[0].message


@pytest.mark.parametrize("script", FAULTY_IN_PART.values(), ids=FAULTY_IN_PART)
def test_run_reports_a_step_that_loses_half_of_the_gradient(run_reports, script: str):
    head = HEAD.replace("  # <- PRC008", "") if "<-" in script else HEAD
    assert "% of the gradient in 48 updates was lost" in run_reports(head + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(HEAD.replace("  # <- PRC008", "") + script)
