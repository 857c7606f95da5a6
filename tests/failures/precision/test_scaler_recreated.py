"""PRC006: a GradScaler that is re-created during training."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
def update(optimizer, scaler):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
"""

CORRECT = {
    "one": """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for epoch in range(4):
    for _ in range(2):
        update(optimizer, scaler)
""",
    "folds with an optimizer each": """
for fold in range(4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(2):
        update(optimizer, scaler)
""",
    "a search that goes back to the start": """
import copy
start, fresh = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
for scale in (8.0, 64.0, 512.0):
    model.load_state_dict(start)
    optimizer.load_state_dict(fresh)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for _ in range(2):
        update(optimizer, scaler)
""",
    "switched off": """
for epoch in range(4):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    update(optimizer, scaler)
""",
    "one for each model": """
nets = [nn.Linear(6, 1) for _ in range(4)]
parts = [(torch.optim.SGD(net.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=64.0)) for net in nets]
for _ in range(2):
    for net, (opt, scaler) in zip(nets, parts):
        opt.zero_grad()
        scaler.scale(mse(net(x), y)).backward()
        scaler.step(opt)
        scaler.update()
""",
    "two stages": """
for stage in range(2):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if stage else torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(2):
        update(optimizer, scaler)
""",
}

FAULTY = {
    "in the loop over epochs": """
for epoch in range(4):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)  # <- PRC006
    for _ in range(2):
        update(optimizer, scaler)
""",
    "in the function for one epoch": """
def train_epoch(net, opt):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)  # <- PRC006
    for _ in range(2):
        update(opt, scaler)
for epoch in range(4):
    train_epoch(model, optimizer)
""",
    "in the step of a class, with accumulation": """
class Trainer:
    def step(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=10)  # <- PRC006
        optimizer.zero_grad()
        for part in (x[:48], x[48:]):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = mse(model(part).float(), y[: len(part)]) / 2
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.scaler.step(optimizer)
        self.scaler.update()
trainer = Trainer()
for _ in range(5):
    trainer.step()
""",
    "two optimizers": """
head = nn.Linear(1, 1)
second = torch.optim.Adam(head.parameters(), lr=0.01)
for epoch in range(4):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)  # <- PRC006
    for _ in range(2):
        optimizer.zero_grad()
        second.zero_grad()
        scaler.scale(mse(head(model(x)), y)).backward()
        scaler.step(optimizer)
        scaler.step(second)
        scaler.update()
""",
    "by a factory": """
def make():
    return torch.amp.GradScaler("cpu", init_scale=64.0)  # <- PRC006
for epoch in range(4):
    scaler = make()
    update(optimizer, scaler)
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_IGNORES = {
    "after an error": """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for epoch in range(4):
    if scaler.get_scale() < 1:
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    update(optimizer, scaler)
""",
    "one iteration": """
for epoch in range(1):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    update(optimizer, scaler)
""",
}


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(HEAD + FAULTY[name])


@pytest.mark.parametrize("name", [*CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**CORRECT, **LINT_IGNORES}[name])
