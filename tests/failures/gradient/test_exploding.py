"""GRD008: gradients that keep growing."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
mse = nn.functional.mse_loss
"""

FAULTY = {
    "a rate that is far too high": """
optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
for _ in range(15):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()  # <- GRD008
""",
    "a class, two parameter groups, weight decay": """
class Learner:
    def __init__(self):
        groups = [{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}]
        self.optimizer = torch.optim.SGD(groups, lr=3.0, weight_decay=1e-4)
    def update(self):
        self.optimizer.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        self.optimizer.step()  # <- GRD008
        return loss.item()
learner = Learner()
losses = [learner.update() for _ in range(15)]
""",
    "accumulation over two batches": """
optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
def train(loader):
    for number, (a, b) in enumerate(loader, 1):
        (mse(model(a), b) / 2).backward()
        if number % 2 == 0:
            optimizer.step()  # <- GRD008
            optimizer.zero_grad()
for _ in range(15):
    train(DataLoader(TensorDataset(x, y), batch_size=48))
""",
    "inputs that are not scaled, a norm that is only logged": """
wide = x * 20
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
norms = []
for _ in range(15):
    loss = mse(model(wide), y)
    optimizer.zero_grad()
    loss.backward()
    norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), float("inf"))))
    optimizer.step()  # <- GRD008
""",
}

CORRECT = {
    "the program goes back and lowers the rate": """
import copy
optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
good, first = copy.deepcopy(model.state_dict()), mse(model(x), y).item()
for _ in range(60):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.backward()
    optimizer.step()
    if loss.item() > 1e9 * first:
        model.load_state_dict(good)
        optimizer.param_groups[0]["lr"] = 0.05
""",
    "clipped": """
optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
for _ in range(15):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
    "a rate finder": """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(16):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] *= 4
""",
    "warm-up": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 1e-3, total_iters=10)
for _ in range(16):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
    warm.step()
""",
    "one outlier batch": """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(16):
    optimizer.zero_grad()
    mse(model(x), y * (1e5 if step == 12 else 1)).backward()
    optimizer.step()
""",
    "a term that is switched on": """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(16):
    optimizer.zero_grad()
    loss = mse(model(x), y) * 1e-3
    if step >= 9:
        loss = loss + 1e3 * model.weight.square().sum()
    loss.backward()
    optimizer.step()
""",
    "a term whose factor grows from nothing": """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for step in range(16):
    optimizer.zero_grad()
    loss = mse(model(x), y) * 1e-6 + model.weight.square().sum() * step ** 4
    loss.backward()
    optimizer.step()
""",
    "two optimizers that alternate": """
other = nn.Linear(6, 1)
first = torch.optim.SGD(model.parameters(), lr=3.0)
second = torch.optim.SGD(other.parameters(), lr=0.01)
for step in range(13):
    first.zero_grad()
    mse(model(x), y).backward()
    first.step()
    second.zero_grad()
    mse(other(x), y).backward()
    second.step()
""",
    "rewards that start late": """
policy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for step in range(16):
    optimizer.zero_grad()
    reward = 1e-6 if step < 9 else 1.7 ** step
    (-policy(x).log_softmax(-1)[:, 0] * reward).mean().backward()
    optimizer.step()
""",
    "a curriculum of ever larger targets": """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(16):
    optimizer.zero_grad()
    mse(model(x), y * 1.3 ** step).backward()
    optimizer.step()
""",
    "activations that are maximised": """
picture = torch.randn(1, 6, requires_grad=True)
optimizer = torch.optim.SGD([picture], lr=1.0)
for step in range(16):
    optimizer.zero_grad()
    (-model(picture).square().sum()).backward()
    optimizer.step()
""",
    "a small start that leaves a saddle": """
deep = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(3)), nn.Linear(6, 1))
for p in deep.parameters():
    p.data.mul_(0.05)
optimizer = torch.optim.Adam(deep.parameters(), lr=0.05)
for step in range(16):
    optimizer.zero_grad()
    mse(deep(x), y).backward()
    optimizer.step()
""",
    "large initial weights that settle": """
for p in model.parameters():
    p.data.mul_(1e6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for step in range(16):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
""",
    "rewards with any scale": """
policy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for step in range(16):
    chosen = torch.distributions.Categorical(logits=policy(x))
    action = chosen.sample()
    reward = (action == 1).float() * 3.0 ** (step % 7)
    optimizer.zero_grad()
    (-chosen.log_prob(action) * reward).mean().backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)
