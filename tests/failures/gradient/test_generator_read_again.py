"""GRD028: a generator that is read again after it is used up."""

import pytest

HEAD = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
batches = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(8)]
"""
LOOP = """
for x, y in batches:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    {change}
    loss.backward()
    optimizer.step()
"""


def loop(before: str, change: str) -> str:
    return HEAD + before + LOOP.format(change=change)


FAULTY = {
    "a sum": loop(
        "weights = (p for p in model.parameters() if p.dim() > 1)\n",
        "loss = loss + sum(p.square().sum() for p in weights)  # <- GRD028",
    ),
    "a for loop": loop(
        "named = model.named_parameters()\n",
        "for name, p in named:  # <- GRD028\n        loss = loss + 1e-4 * p.norm()",
    ),
    "map": loop("norms = map(torch.norm, list(model.parameters()))\n", "loss = loss + 1e-4 * sum(norms)  # <- GRD028"),
    "in a function": loop(
        "params = model.parameters()\n\ndef penalty():\n    return sum(p.abs().sum() for p in params)  # <- GRD028\n",
        "loss = loss + penalty()",
    ),
    "in a class": HEAD
    + """
class Penalty:
    def __init__(self, net):
        self.weights = filter(lambda p: p.dim() > 1, net.parameters())

    def value(self):
        return sum([p.abs().sum() for p in self.weights])  # <- GRD028

penalty = Penalty(model)
for x, y in batches:
    optimizer.zero_grad()
    (nn.functional.mse_loss(model(x), y) + penalty.value()).backward()
    optimizer.step()
""",
    "a parameter": HEAD
    + """
def fit(model, batches, weights):
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y) + sum(w.abs().sum() for w in weights)  # <- GRD028
        loss.backward()
        optimizer.step()

fit(model, batches, (p for p in model.parameters() if p.dim() > 1))
""",
    "an average": HEAD
    + """
def average(model, shadow):
    pairs = zip(model.parameters(), shadow)
    for epoch in range(3):
        with torch.no_grad():
            for p, q in pairs:  # <- GRD028
                q.lerp_(p, 0.1)
""",
    "zipped again in each epoch of a function": HEAD
    + """
def fit(params, moments):
    for x, y in batches:
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        for p, m in zip(params, moments):  # <- GRD028
            m.mul_(0.9).add_(p.grad)
            p.data.sub_(m)

fit(model.parameters(), [torch.zeros_like(p) for p in model.parameters()])
""",
}
CORRECT = {
    "a list": loop(
        "weights = [p for p in model.parameters() if p.dim() > 1]\n",
        "loss = loss + sum(p.square().sum() for p in weights)",
    ),
    "created in the loop": loop(
        "", "weights = (p for p in model.parameters())\n    loss = loss + sum(p.norm() for p in weights)"
    ),
    "a list as a parameter": HEAD
    + """
def fit(weights):
    for x, y in batches:
        optimizer.zero_grad()
        (nn.functional.mse_loss(model(x), y) + sum(w.abs().sum() for w in weights)).backward()
        optimizer.step()

fit(list(model.parameters()))
""",
    "read once": HEAD + "print(sum(p.numel() for p in (named := model.parameters())))\n",
    "a count before the loop": loop("params = model.parameters()\nprint(sum(p.numel() for p in params))\n", "pass"),
    "one item at a time": loop("stream = (torch.randn(4, 1) for _ in range(100))\n", "y = next(stream)"),
    "left early": loop(
        "stream = (torch.randn(4, 1) for _ in range(100))\n",
        "for noise in stream:\n        y = y + noise\n        break",
    ),
    "an argument": HEAD
    + """
def penalty(params):
    return sum(p.norm() for p in params)

for x, y in batches:
    optimizer.zero_grad()
    (nn.functional.mse_loss(model(x), y) + penalty(model.parameters())).backward()
    optimizer.step()
""",
    "a new generator for each call": HEAD
    + """
moments = [torch.zeros_like(p) for p in model.parameters()]

def momentum(parameters, moments, lr):
    for p, m in zip(parameters, moments):
        m[:] = 0.9 * m + lr * p.grad
        p.data -= m

for x, y in batches:
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    momentum(model.parameters(), moments, 0.1)
""",
    "numbered parameters of each call": HEAD
    + """
def norms(params):
    return [p.grad.norm() for i, p in enumerate(params) if i > 0]

def shrink(params):
    for i, p in enumerate(params):
        p.data.mul_(0.99)

for x, y in batches:
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    print(norms(model.parameters()))
    shrink(model.parameters())
""",
    "created in each call of a method of a class with a step": HEAD
    + """
class Server:
    def step(self, states, weights):
        self.states = self.clients_step(states, weights)

    def clients_step(self, states, weights):
        active = zip(states, weights)
        return [client_step(state, weight) for state, weight in active]

def client_step(state, weight):
    for epoch in range(3):
        model.zero_grad()
        model(state).sum().backward()
        optimizer.step()
    return state
""",
    "created by the function that reads it": HEAD
    + """
def report():
    named = model.named_parameters()
    return {name: p.norm().item() for name, p in named}

for epoch in range(3):
    print(report())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_generators_that_are_used_up(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "GRD028")
