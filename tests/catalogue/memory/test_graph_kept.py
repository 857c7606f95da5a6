"""MEM001: graphs of past updates that stay in memory, and who holds them."""

import pytest

HEAD = """
import collections
import torch
from torch import nn

x = torch.rand(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss

def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""

GUILTY = {
    "a list": (
        "losses[*] (global, train.py)",
        """
losses = []
for step in range(80):
    losses.append(update(mse(model(x), y)))  # <- MEM001
""",
    ),
    "a running total": (
        "total (local of train, train.py)",
        """
def train():
    total = 0
    for step in range(80):
        total += update(mse(model(x), y))  # <- MEM001
    return total
train()
""",
    ),
    "an attribute of a class": (
        "self.history[*]",
        """
class Trainer:
    def __init__(self):
        self.history = []
    def fit(self):
        for step in range(80):
            loss = update(mse(model(x), y))
            self.history.append({"loss": loss, "step": step})  # <- MEM001
Trainer().fit()
""",
    ),
    "a dictionary by step": (
        "log[*]",
        """
log = {}
for step in range(80):
    log[step] = update(mse(model(x), y)) * 2  # <- MEM001
""",
    ),
    "outputs for a metric, in a closure": (
        "outputs[*]",
        """
def make():
    outputs = []
    def one():
        out = model(x)
        update(mse(out, y))
        outputs.append(out)  # <- MEM001
    return one
one = make()
for step in range(80):
    one()
""",
    ),
    "a meter": (
        "meter.sum",
        """
class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0
    def add(self, value):
        self.sum = self.sum + value  # <- MEM001
        self.count += 1
meter = Meter()
for step in range(80):
    meter.add(update(mse(model(x), y)))
""",
    ),
}

QUIET = {
    "numbers, and tensors without a graph": """
losses, outputs = [], []
for step in range(80):
    out = model(x)
    loss = update(mse(out, y))
    losses.append(loss.item())
    outputs.append(out.detach())
""",
    "the last few, in a deque": """
recent = collections.deque(maxlen=16)
for step in range(120):
    recent.append(update(mse(model(x), y)))
""",
    "the best so far": """
best = None
for step in range(120):
    loss = update(mse(model(x), y))
    best = loss if best is None or loss < best else best
""",
    "an epoch's, cleared at its end": """
losses = []
for step in range(120):
    losses.append(update(mse(model(x), y)))
    if step % 30 == 29:
        print(torch.stack(losses).mean().item())
        losses.clear()
""",
    "truncated backpropagation through time": """
cell, out = nn.GRUCell(6, 8), nn.Linear(8, 1)
adam = torch.optim.Adam([*cell.parameters(), *out.parameters()], lr=0.01)
hidden, window = torch.zeros(64, 8), []
for step in range(160):
    hidden = cell(x, hidden)
    window.append(mse(out(hidden), y))
    if len(window) == 4:
        adam.zero_grad()
        sum(window).backward()
        adam.step()
        hidden, window = hidden.detach(), []
""",
    "policy gradients over an episode": """
policy = torch.optim.Adam(model.parameters(), lr=0.01)
for episode in range(40):
    logs = []
    for step in range(12):
        chosen = torch.distributions.Normal(model(x[step]), 1.0)
        logs.append(chosen.log_prob(chosen.sample()))
    policy.zero_grad()
    (-torch.stack(logs).sum()).backward()
    policy.step()
""",
    "graphs in a cycle, until the collector runs": """
class Keeper: pass
import gc
gc.disable()
for step in range(80):
    keeper = Keeper()
    keeper.me, keeper.loss = keeper, update(mse(model(x), y))
gc.enable()
""",
    "graphs that were made once and are used in every update": """
parts = [model(x[k : k + 8]) for k in range(0, 64, 8)]
scale = nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([scale], lr=0.01)
for step in range(80):
    optimizer.zero_grad()
    (torch.cat(parts).detach() * scale - y).square().mean().backward()
    optimizer.step()
""",
    "short runs": """
losses = [update(mse(model(x), y)) for step in range(15)]
""",
}


@pytest.mark.parametrize(("holder", "script"), GUILTY.values(), ids=GUILTY)
def test_it_is_found_and_who_holds_them(run, holder, script):
    ran = run(HEAD + script)
    (found,) = (each for each in ran.findings if each.code == "MEM001")
    assert holder in found.message
    assert {code for code, _ in ran.places} == {"MEM001"}
    (marked,) = (number for number, line in enumerate(ran.path.read_text().splitlines(), 1) if "# <- MEM001" in line)
    assert (found.site.path, found.site.line) == (str(ran.path), marked)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(quiet, script):
    quiet(HEAD + script)
