"""GRD011: clipping the parameters of an exhausted generator."""

import pytest

HEAD = """
import itertools
import warnings
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

warnings.filterwarnings("ignore")
x = torch.randn(96, 6)
y = 10 * x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
mse = nn.functional.mse_loss
def backward(optimizer):
    optimizer.zero_grad()
    mse(model(x), y).backward()
"""

CORRECT = {
    "a list": """
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, lr=0.001)
for _ in range(4):
    backward(optimizer)
    clip_grad_norm_(parameters, 0.1)
    optimizer.step()
""",
    "a new generator each time": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(4):
    backward(optimizer)
    parameters = model.parameters()
    clip_grad_norm_(parameters, 0.1)
    clip_grad_value_(filter(lambda p: p.requires_grad, model.parameters()), 1.0)
    optimizer.step()
""",
    "a new generator each call": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
def update():
    parameters = (p for p in model.parameters() if p.grad is not None)
    clip_grad_norm_(parameters, 0.1)
    optimizer.step()
for _ in range(4):
    backward(optimizer)
    update()
""",
    "a stage in which nothing is trainable": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
frozen = nn.Linear(6, 1).requires_grad_(False)
for _ in range(4):
    backward(optimizer)
    clip_grad_norm_((p for p in frozen.parameters() if p.requires_grad), 0.1)
    clip_grad_norm_(nn.Tanh().parameters(), 0.1)
    clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
""",
    "a list of trainable parameters, one tensor, groups": """
optimizer = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.001)
trainable = [p for p in model.parameters() if p.requires_grad]
for _ in range(4):
    backward(optimizer)
    clip_grad_norm_(trainable, 0.1)
    clip_grad_norm_(model[0].weight, 0.1)
    for group in optimizer.param_groups:
        clip_grad_norm_(group["params"], 0.1)
    optimizer.step()
""",
    "recreated for each fold": """
class Trainer:
    def __init__(self):
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        self.parameters = model.parameters()
    def fit_once(self):
        backward(self.optimizer)
        clip_grad_norm_(self.parameters, 0.1)
        self.optimizer.step()
for _ in range(3):
    Trainer().fit_once()
""",
}

FAULTY = {
    "consumed by the optimizer": """
parameters = model.parameters()
optimizer = torch.optim.SGD(parameters, lr=0.001)
for _ in range(4):
    backward(optimizer)
    clip_grad_norm_(parameters, 0.1)  # <- GRD011
    optimizer.step()
""",
    "consumed by the first iteration": """
def train():
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    weights = model.parameters()
    for _ in range(4):
        backward(optimizer)
        clip_grad_norm_(weights, 0.1)  # <- GRD011
        optimizer.step()
train()
""",
    "filtered, in a class": """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.trainable = filter(lambda p: p.requires_grad, self.net.parameters())
        self.optimizer = torch.optim.SGD(self.trainable, lr=0.001)
    def step(self):
        backward(self.optimizer)
        nn.utils.clip_grad_norm_(self.trainable, max_norm=0.1)  # <- GRD011
        self.optimizer.step()
trainer = Trainer(model)
for _ in range(4):
    trainer.step()
""",
    "a generator expression, with a scaler and accumulation": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
matrices = (p for p in model.parameters())
count = sum(p.numel() for p in matrices)
for _ in range(6):
    optimizer.zero_grad()
    for part in (x[:48], x[48:]):
        scaler.scale(mse(model(part), y[: len(part)]) / 2).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(matrices, 0.1)  # <- GRD011
    scaler.step(optimizer)
    scaler.update()
""",
    "two optimizers, one of them from the generator": """
head = model[2].parameters()
first = torch.optim.SGD(model[0].parameters(), lr=0.001)
second = torch.optim.Adam(params=head, lr=0.001)
for _ in range(4):
    second.zero_grad()
    backward(first)
    clip_grad_norm_(model[0].parameters(), 0.1)
    clip_grad_norm_(parameters=head, max_norm=0.1)  # <- GRD011
    first.step()
    second.step()
""",
    "a closure over the generator": """
def clipping(parameters, limit):
    def clip():
        return clip_grad_norm_(parameters, limit)  # <- GRD011
    return clip
clip = clipping(model.parameters(), 0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(4):
    backward(optimizer)
    clip()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


# Lint --------------------------------------------------------------------------------------------------------

RUN_ONLY = {"a closure over the generator"}
"""Faulty scripts that lint cannot detect."""

LINT_CORRECT = {
    "a condition in the loop, a name bound twice": """
parameters = model.parameters()
parameters = list(parameters)
optimizer = torch.optim.SGD(parameters, lr=0.001)
for _ in range(4):
    backward(optimizer)
    clip_grad_norm_(parameters, 0.1)
    optimizer.step()
""",
    "one iteration": """
weights = model.parameters()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(1):
    backward(optimizer)
    clip_grad_norm_(weights, 0.1)
    optimizer.step()
""",
    "a property, an argument": """
class Agent(nn.Module):
    @property
    def weights(self):
        return self.parameters()
def train(net: nn.Module, params, optimizer):
    for _ in range(4):
        mse(net(x), y).backward()
        clip_grad_norm_(params, 0.1)
        clip_grad_norm_(net.weights, 0.1)
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", [name for name in FAULTY if name not in RUN_ONLY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + FAULTY[name], fixes=True)


@pytest.mark.parametrize("name", [*RUN_ONLY, *CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_CORRECT}[name])
