"""OPT022: the closure of an LBFGS optimizer draws new samples at each call."""

import pytest

HEAD = """
import numpy as np
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
cost = nn.MSELoss()
def target(x):
    return torch.sin(5 * x)
"""
FAULTY = {
    "in the closure": """
def closure():
    x = torch.rand(32, 1)
    opt.zero_grad()
    loss = cost(model(x), target(x))
    loss.backward()
    return loss
for epoch in range(5):
    opt.step(closure)  # <- OPT022
""",
    "in a function that the closure calls": """
def points(n):
    return torch.tensor(np.random.uniform(0, 1, (n, 1)), dtype=torch.float32)
def residual():
    x = points(32)
    return cost(model(x), target(x))
def closure():
    opt.zero_grad()
    loss = residual()
    loss.backward()
    return loss
for epoch in range(5):
    opt.step(closure)  # <- OPT022
""",
    "methods of a class": """
class Solver:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.LBFGS(self.net.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    def sample(self):
        return torch.empty(32, 1).uniform_(0, 1)
    def closure(self):
        self.optimizer.zero_grad()
        x = self.sample()
        loss = cost(self.net(x), target(x))
        loss.backward()
        return loss
    def train(self):
        for epoch in range(4):
            self.optimizer.step(self.closure)  # <- OPT022
Solver(model).train()
""",
    "rows of a permutation": """
data = torch.linspace(0, 1, 200)[:, None]
for epoch in range(5):
    def closure():
        rows = torch.randperm(200)[:32]
        opt.zero_grad()
        loss = cost(model(data[rows]), target(data[rows]))
        loss.backward()
        return loss
    opt.step(closure)  # <- OPT022
""",
    "the next batch": """
loader = torch.utils.data.DataLoader(torch.rand(4096, 1), batch_size=16)
batches = iter(loader)
def closure():
    x = next(batches)
    opt.zero_grad()
    loss = cost(model(x), target(x))
    loss.backward()
    return loss
for epoch in range(5):
    opt.step(closure)  # <- OPT022
""",
}
CORRECT = {
    "drawn before each step": """
for epoch in range(5):
    x = torch.rand(32, 1)
    def closure():
        opt.zero_grad()
        loss = cost(model(x), target(x))
        loss.backward()
        return loss
    opt.step(closure)
""",
    "one evaluation": """
opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=1)
def closure():
    x = torch.rand(32, 1)
    opt.zero_grad()
    loss = cost(model(x), target(x))
    loss.backward()
    return loss
for epoch in range(5):
    opt.step(closure)
""",
    "at most one evaluation": """
opt = torch.optim.LBFGS(model.parameters(), lr=0.1, max_eval=1)
def closure():
    x = torch.rand(32, 1)
    opt.zero_grad()
    loss = cost(model(x), target(x))
    loss.backward()
    return loss
for epoch in range(5):
    opt.step(closure)
""",
    "the same seed at each call": """
def closure():
    x = torch.rand(32, 1, generator=torch.Generator().manual_seed(3))
    opt.zero_grad()
    loss = cost(model(x), target(x))
    loss.backward()
    return loss
for epoch in range(5):
    opt.step(closure)
""",
    "new samples now and then": """
calls, x = 0, torch.rand(32, 1)
def closure():
    global calls, x
    calls += 1
    if calls % 20 == 0:
        x = torch.rand(32, 1)
    opt.zero_grad()
    loss = cost(model(x), target(x))
    loss.backward()
    return loss
for epoch in range(5):
    opt.step(closure)
""",
    "samples that are kept": """
kept = {}
def points():
    if "x" in kept:
        return kept["x"]
    kept["x"] = torch.rand(32, 1)
    return kept["x"]
def closure():
    opt.zero_grad()
    loss = cost(model(points()), target(points()))
    loss.backward()
    return loss
for epoch in range(5):
    opt.step(closure)
""",
    "all batches of a loader": """
loader = torch.utils.data.DataLoader(torch.rand(64, 1), batch_size=16, shuffle=True)
def closure():
    opt.zero_grad()
    loss = sum(cost(model(x), target(x)) for x in loader)
    loss.backward()
    return loss
for epoch in range(5):
    opt.step(closure)
""",
    "Adam with a closure": """
opt = torch.optim.Adam(model.parameters(), lr=0.01)
def closure():
    x = torch.rand(32, 1)
    opt.zero_grad()
    loss = cost(model(x), target(x))
    loss.backward()
    return loss
for epoch in range(5):
    opt.step(closure)
""",
}


RUN = [script for name, script in FAULTY.items() if name != "the next batch"]


@pytest.mark.parametrize("script", RUN)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
