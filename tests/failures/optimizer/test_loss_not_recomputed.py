"""OPT017: the closure of an LBFGS optimizer computes no new gradients."""

import pytest

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
cost = nn.MSELoss()
"""
FAULTY = {
    "lambda": """
for epoch in range(5):
    opt.zero_grad()
    loss = cost(model(x), y)
    loss.backward()
    opt.step(lambda: loss)  # <- OPT017
""",
    "a function that returns the loss": """
def fit():
    for epoch in range(5):
        opt.zero_grad()
        loss = cost(model(x), y)
        def get_loss():
            return loss
        loss.backward()
        opt.step(closure=get_loss)  # <- OPT017
fit()
""",
    "loss computed again without backward": """
def evaluate():
    prediction = model(x)
    return cost(prediction, y)
for epoch in range(5):
    opt.zero_grad()
    evaluate().backward()
    opt.step(evaluate)  # <- OPT017
""",
    "in a class": """
class Fitter:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.LBFGS(net.parameters(), lr=0.01)
    def update(self, a, b):
        self.optimizer.zero_grad()
        error = cost(self.net(a), b)
        error.backward()
        self.optimizer.step(lambda: error.item())  # <- OPT017
fitter = Fitter(model)
for epoch in range(5):
    fitter.update(x, y)
""",
}
LINT_ONLY = {
    "backward of the same loss again": """
for epoch in range(5):
    loss = cost(model(x), y)
    def closure():
        opt.zero_grad()
        loss.backward(retain_graph=True)  # <- MEM002
        return loss
    opt.step(closure)  # <- OPT017
""",
    "gradients cleared, none computed": """
def closure():
    opt.zero_grad()
    loss = cost(model(x), y)
    return loss
for epoch in range(5):
    opt.step(closure)  # <- OPT017
""",
}
CORRECT = {
    "backward of the module autograd": """
import torch.autograd as autograd
start = x.clone().requires_grad_(True)
search = torch.optim.LBFGS([start])
def closure():
    search.zero_grad()
    value = model(start).pow(2).mean()
    autograd.backward(start, autograd.grad(value, start))
    return value
for epoch in range(5):
    search.step(closure)
""",
    "complete closure": """
def closure():
    opt.zero_grad()
    loss = cost(model(x), y)
    loss.backward()
    return loss
for epoch in range(5):
    opt.step(closure)
""",
    "another optimizer": """
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(5):
    opt.zero_grad()
    loss = cost(model(x), y)
    loss.backward()
    opt.step(lambda: loss)
""",
    "one iteration": """
opt = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=1)
for epoch in range(5):
    opt.zero_grad()
    loss = cost(model(x), y)
    loss.backward()
    opt.step(lambda: loss)
""",
    "gradients by hand": """
def closure():
    loss = cost(model(x), y)
    for p, g in zip(model.parameters(), torch.autograd.grad(loss, model.parameters())):
        p.grad = g
    return loss
for epoch in range(5):
    opt.step(closure)
""",
    "backward in a function": """
def compute():
    loss = cost(model(x), y)
    loss.backward()
    return loss
def closure():
    opt.zero_grad()
    return compute()
for epoch in range(5):
    opt.step(closure)
""",
    "nonlocal loss": """
def fit():
    loss = None
    def closure():
        nonlocal loss
        opt.zero_grad()
        loss = cost(model(x), y)
        loss.backward()
        return loss
    for epoch in range(5):
        opt.step(closure)
        print(loss.item())
fit()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_and_lint_report_the_step(run_reports, lint_reports, script):
    run_reports(HEAD + script)
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", LINT_ONLY.values(), ids=LINT_ONLY)
def test_lint_reports_the_step(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, lint_is_clean, script):
    run_is_clean(HEAD + script)
    lint_is_clean(HEAD + script, "OPT017")
