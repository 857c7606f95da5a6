"""PRC009: a GradScaler divides gradients of losses that it has not multiplied."""

import pytest

HEAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(96, 6)
y, size = x.sum(1, keepdim=True), x.square().mean(1, keepdim=True)
body, head, second = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 1), nn.Linear(8, 1)
parameters = [*body.parameters(), *head.parameters(), *second.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
mse = nn.functional.mse_loss
"""

CORRECT = {
    "both scaled": """
for _ in range(4):
    optimizer.zero_grad()
    h = body(x)
    scaler.scale(mse(head(h), y)).backward(retain_graph=True)
    scaler.scale(mse(second(h), size)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "a list of losses is scaled": """
for _ in range(4):
    optimizer.zero_grad()
    h = body(x)
    for loss in scaler.scale([mse(head(h), y), mse(second(h), size)]):
        loss.backward(retain_graph=True)
    scaler.step(optimizer)
    scaler.update()
""",
    "many scaled losses are added": """
for _ in range(4):
    optimizer.zero_grad()
    total = 0
    for rows in torch.arange(96).split(8):
        total = total + scaler.scale(mse(head(body(x[rows])), y[rows])) / 12
    total.backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "unscaled before the second loss": """
for _ in range(4):
    optimizer.zero_grad()
    h = body(x)
    scaler.scale(mse(head(h), y)).backward(retain_graph=True)
    scaler.unscale_(optimizer)
    mse(second(h), size).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "multiplied by the program": """
for _ in range(4):
    optimizer.zero_grad()
    h = body(x)
    scaler.scale(mse(head(h), y)).backward(retain_graph=True)
    (mse(second(h), size) * scaler.get_scale()).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "the optimizer of the other loss steps itself": """
plain = torch.optim.SGD(second.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    plain.zero_grad()
    scaler.scale(mse(head(body(x)), y)).backward()
    mse(second(body(x).detach()), size).backward()
    plain.step()
    plain.zero_grad()
    scaler.step(optimizer)
    scaler.update()
""",
    "switched off": """
off = torch.amp.GradScaler("cpu", enabled=False)
for _ in range(4):
    optimizer.zero_grad()
    h = body(x)
    off.scale(mse(head(h), y)).backward(retain_graph=True)
    mse(second(h), size).backward()
    off.step(optimizer)
    off.update()
""",
    "a warm-up without the scaler": """
for epoch in range(6):
    optimizer.zero_grad()
    loss = mse(head(body(x)), y) + mse(second(body(x)), size)
    if epoch < 3:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    "gradients of a probe are cleared first": """
for _ in range(4):
    h = body(x)
    mse(second(h), size).backward(retain_graph=True)
    noise = [p.grad.norm() for p in second.parameters()]
    optimizer.zero_grad()
    scaler.scale(mse(head(h), y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
}

FAULTY = {
    "the second of two losses": """
for _ in range(4):
    optimizer.zero_grad()
    h = body(x)
    scaler.scale(mse(head(h), y)).backward(retain_graph=True)
    mse(second(h), size).backward()  # <- PRC009
    scaler.step(optimizer)
    scaler.update()
""",
    "the first of two, in a function": """
def update(rows):
    h = body(x[rows])
    auxiliary = 0.5 * mse(second(h), size[rows])
    optimizer.zero_grad()
    auxiliary.backward(retain_graph=True)  # <- PRC009
    loss = mse(head(h), y[rows])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
for rows in torch.randperm(96).split(24):
    update(rows)
""",
    "two optimizers, one loss forgotten": """
critic = nn.Linear(6, 1)
other = torch.optim.SGD(critic.parameters(), lr=0.01)
for _ in range(4):
    other.zero_grad()
    mse(critic(x), size).backward()  # <- PRC009
    optimizer.zero_grad()
    scaler.scale(mse(head(body(x)), y) + mse(second(body(x)), y)).backward()
    scaler.step(optimizer)
    scaler.step(other)
    scaler.update()
""",
    "unscaled together, to be clipped": """
class Trainer:
    def __init__(self):
        self.optimizer = torch.optim.SGD(parameters, lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    def fit(self, epochs):
        for _ in range(epochs):
            self.optimizer.zero_grad()
            h = body(x)
            self.scaler.scale(mse(head(h), y)).backward(retain_graph=True)
            mse(second(h), size).backward()  # <- PRC009
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
Trainer().fit(4)
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(HEAD + FAULTY[name])


@pytest.mark.parametrize("name", CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + CORRECT[name])
