"""SCH004: the rate of hand-written updates decays after every batch."""

import pytest

HEAD = """
import argparse
from dataclasses import dataclass
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
def descend(rate, inputs, targets):
    model.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= rate * p.grad
"""
FAULTY = {
    "a variable": """
learning_rate = 0.1
for epoch in range(20):
    for inputs, targets in loader:
        descend(learning_rate, inputs, targets)
        learning_rate = learning_rate * 0.95  # <- SCH004
""",
    "a field of a dataclass, in the function that updates": """
@dataclass
class State:
    params: list
    lr: float = 0.1
    gamma: float = 0.93
    epoch: int = 0
def update(state, grads):
    with torch.no_grad():
        for p, g in zip(state.params, grads):
            p.sub_(state.lr * g)
    state.lr *= state.gamma  # <- SCH004
def run_epoch(state):
    for rows in torch.randperm(160).split(16):
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        update(state, torch.autograd.grad(loss, state.params))
    state.epoch += 1
state = State(list(model.parameters()))
while state.epoch < 20:
    run_epoch(state)
""",
    "the groups of an optimizer": """
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(20):
    for inputs, targets in loader:
        opt.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        opt.step()
        for group in opt.param_groups:
            group["lr"] *= 0.9  # <- SCH004
""",
    "an option, in a class": """
parser = argparse.ArgumentParser()
parser.add_argument("--decay", type=float, default=0.95)
args = parser.parse_args([])
class Trainer:
    def __init__(self):
        self.lr = 0.1
    def train_batch(self, inputs, targets):
        nn.functional.mse_loss(model(inputs), targets).backward()
        for p in model.parameters():
            p.data -= self.lr * p.grad
            p.grad = None
        self.lr *= args.decay  # <- SCH004
    def fit(self, epochs):
        for epoch in range(epochs):
            for i in range(0, 160, 16):
                self.train_batch(x[i:i + 16], y[i:i + 16])
Trainer().fit(20)
""",
}
CORRECT = {
    "once per epoch": """
lr = 0.1
for epoch in range(20):
    for inputs, targets in loader:
        descend(lr, inputs, targets)
    lr *= 0.95
""",
    "a factor for updates": """
lr = 0.1
for epoch in range(20):
    for inputs, targets in loader:
        descend(lr, inputs, targets)
        lr *= 0.9995
""",
    "a lower limit": """
lr = 0.1
for epoch in range(20):
    for inputs, targets in loader:
        descend(lr, inputs, targets)
        lr *= 0.95
        lr = max(lr, 0.01)
""",
    "now and then": """
lr, step = 0.1, 0
for epoch in range(20):
    for inputs, targets in loader:
        descend(lr, inputs, targets)
        step += 1
        if step % 100 == 0:
            lr *= 0.5
""",
    "set again in each epoch": """
for epoch in range(20):
    lr = 0.1
    for inputs, targets in loader:
        descend(lr, inputs, targets)
        lr *= 0.9
""",
    "a line search": """
for epoch in range(20):
    for inputs, targets in loader:
        step_size = 1.0
        while step_size > 1e-3:
            step_size *= 0.5
        descend(step_size, inputs, targets)
""",
    "full batches for several seeds": """
for seed in range(3):
    torch.manual_seed(seed)
    lr = 0.1
    for epoch in range(50):
        descend(lr, x, y)
        lr *= 0.95
""",
    "an attribute that is set again": """
class Trainer:
    def __init__(self):
        self.lr = 0.1
    def epoch(self):
        self.lr = 0.1
        for inputs, targets in loader:
            descend(self.lr, inputs, targets)
            self.lr *= 0.9
trainer = Trainer()
for epoch in range(20):
    trainer.epoch()
""",
    "called once per epoch": """
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def decay():
    for group in opt.param_groups:
        group["lr"] *= 0.9
for epoch in range(20):
    for inputs, targets in loader:
        opt.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        opt.step()
    decay()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script, "SCH004")
