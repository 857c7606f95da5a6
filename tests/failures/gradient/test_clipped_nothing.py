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

OWN = """
@torch.no_grad()
def limit_norm(weights, ceiling):
    total = sum(w.grad.square().sum().item() for w in weights) ** 0.5
    if total > ceiling:
        for w in weights:MARK
            w.grad.mul_(ceiling / total)
    return total
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(4):
    backward(optimizer)
    limit_norm(ARGUMENT, 0.1)
    optimizer.step()
"""
OWN_FAULTY = {
    "a function with two loops": OWN.replace("ARGUMENT", "model.parameters()"),
    "a generator expression": OWN.replace("ARGUMENT", "(p for p in model.parameters() if p.grad is not None)"),
    "a method, by keyword": """
class Clipper:
    def __init__(self, limit):
        self.limit = limit
    def __call__(self, module):
        return self.clip(parameters=module.parameters())
    def clip(self, parameters):
        largest = 0.0
        for p in parameters:
            largest = max(largest, p.grad.abs().max())
        for p in parameters:MARK
            p.grad *= self.limit / largest
clip, optimizer = Clipper(0.1), torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(4):
    backward(optimizer)
    clip(model)
    optimizer.step()
""",
    "in the loop": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(4):
    backward(optimizer)
    weights = filter(lambda p: p.requires_grad, model.parameters())
    norms = [w.grad.norm() for w in weights]
    for w in weights:MARK
        w.grad.div_(torch.stack(norms).norm())
    optimizer.step()
""",
}
OWN_CORRECT = {
    "a list": OWN.replace("ARGUMENT", "list(model.parameters())"),
    "a list in the function": OWN.replace("ARGUMENT", "model.parameters()").replace(
        "    total =", "    weights = list(weights)\n    total ="
    ),
    "the first loop only by option": """
def limit(weights, bound, verbose=False):
    if verbose:
        print([w.grad.norm() for w in weights])
        return
    for w in weights:
        w.grad.clamp_(-bound, bound)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(4):
    backward(optimizer)
    limit(model.parameters(), 0.1)
    optimizer.step()
""",
    "a class whose parameters are a list": """
class Net:
    def __init__(self):
        self.weight = torch.zeros(6, 1, requires_grad=True)
    def parameters(self):
        return [self.weight]
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
def limit(weights, bound):
    total = sum(w.grad.norm() for w in weights)
    for w in weights:
        w.grad.mul_(bound / total)
for _ in range(4):
    optimizer.zero_grad()
    mse(x @ net.weight, y).backward()
    limit(net.parameters(), 0.1)
    optimizer.step()
""",
    "a search that stops at the first": """
def limit(weights):
    for w in weights:
        if w.grad.norm() > 1:
            break
    for w in weights:
        w.grad.clamp_(-1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(4):
    backward(optimizer)
    limit(model.parameters())
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", OWN_FAULTY.values(), ids=OWN_FAULTY)
def test_run_and_lint_report_a_second_pass_over_a_generator(run_reports, lint_reports, script):
    run_reports(HEAD + script.replace("MARK", "  # <- GRD011"))
    lint_reports(HEAD + script.replace("MARK", "  # <- GRD011"))


@pytest.mark.parametrize("script", OWN_CORRECT.values(), ids=OWN_CORRECT)
def test_run_and_lint_accept_parameters_that_are_there_twice(run_is_clean, lint_is_clean, script):
    run_is_clean(HEAD + script.replace("MARK", ""))
    lint_is_clean(HEAD + script.replace("MARK", ""))


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
