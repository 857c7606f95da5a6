"""PRC005: steps that bypass the GradScaler."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
mse = nn.functional.mse_loss
"""

CORRECT = {
    "by the scaler": """
for _ in range(4):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "unscaled, checked and stepped": """
for _ in range(4):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.unscale_(optimizer)
    if all(torch.isfinite(p.grad).all() for p in model.parameters()):
        optimizer.step()
    scaler.update()
""",
    "divided by hand": """
for _ in range(4):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    for p in model.parameters():
        p.grad.div_(256.0)
    optimizer.step()
""",
    "divided by hand through grad.data": """
for _ in range(4):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    factor = scaler.get_scale()
    for p in model.parameters():
        p.grad.data /= factor
    optimizer.step()
""",
    "switched off": """
off = torch.amp.GradScaler("cpu", enabled=False)
for _ in range(4):
    optimizer.zero_grad()
    off.scale(mse(model(x), y)).backward()
    optimizer.step()
""",
    "one optimizer with, one without": """
head = nn.Linear(1, 1)
second = torch.optim.SGD(head.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    second.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
    mse(head(y), y).backward()
    second.step()
""",
    "fused, which divides in its step": """
fused = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
for _ in range(4):
    fused.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.step(fused)
    scaler.update()
""",
    "one code for both": """
def train(net, use_amp):
    for _ in range(3):
        optimizer.zero_grad()
        loss = mse(net(x), y)
        if use_amp:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
train(model, True)
train(model, False)
""",
}

FAULTY = {
    "a plain step": """
for _ in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = mse(model(x).float(), y)
    scaler.scale(loss).backward()
    optimizer.step()  # <- PRC005
""",
    "in a class, with update()": """
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=True)
    def step(self):
        self.optimizer.zero_grad()
        loss = mse(self.net(x), y)
        self.scaler.scale(loss).backward()
        self.optimizer.step()  # <- PRC005
trainer = Trainer(model)
for _ in range(4):
    trainer.step()
""",
    "accumulation, through a helper": """
def end():
    optimizer.step()  # <- PRC005
    optimizer.zero_grad()
for number in range(8):
    scaler.scale(mse(model(x), y) / 2).backward()
    if number % 2:
        end()
""",
    "two optimizers, one of them forgotten": """
head = nn.Linear(1, 1)
second = torch.optim.Adam(head.parameters(), lr=0.01)
for _ in range(4):
    optimizer.zero_grad()
    second.zero_grad()
    scaler.scale(mse(head(model(x)), y)).backward()
    scaler.step(optimizer)
    second.step()  # <- PRC005
    scaler.update()
""",
    "a closure": """
def make(opt):
    def update():
        opt.zero_grad()
        scaled = scaler.scale(mse(model(x), y))
        scaled.backward()
        opt.step()  # <- PRC005
    return update
update = make(optimizer)
for _ in range(4):
    update()
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_MISSES = {"two optimizers, one of them forgotten"}
"""Faulty scripts that the text alone does not reveal."""

LINT_IGNORES = {
    "a scaler from outside": """
def train(net: nn.Module, opt: torch.optim.Optimizer, scaler, loader):
    for a, b in loader:
        scaler.scale(mse(net(a), b)).backward()
        opt.step()
        opt.zero_grad()
""",
    "passed to another function in between": """
from elsewhere import unscale
for _ in range(4):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    unscale(optimizer, 256.0)
    optimizer.step()
""",
    "switched by a setting": """
def train(use_amp, loader):
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    for a, b in loader:
        scaler.scale(mse(model(a), b)).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", [name for name in FAULTY if name not in LINT_MISSES])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(HEAD + FAULTY[name])


@pytest.mark.parametrize("name", [*LINT_MISSES, *CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_IGNORES}[name])
