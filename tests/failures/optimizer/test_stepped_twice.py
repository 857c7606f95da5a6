"""OPT005: two steps with the same gradients."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
"""

CORRECT = {
    "one step, cleared after it": """
for _ in range(6):
    mse(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "two backwards, two steps": """
for _ in range(4):
    for part in (x[:48], x[48:]):
        optimizer.zero_grad()
        mse(model(part), y[: len(part)]).backward()
        optimizer.step()
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
""",
    "a GAN, cleared where it is used": """
critic = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
second = torch.optim.Adam(critic.parameters(), lr=0.01)
for _ in range(6):
    second.zero_grad()
    (critic(model(x).detach()).mean() - critic(y).mean()).backward()
    second.step()
    optimizer.zero_grad()
    (-critic(model(x)).mean()).backward()
    optimizer.step()
""",
    "the previous gradient, scaled down": """
for _ in range(6):
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(0.9)
    optimizer.step()
    mse(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "two optimizers of two parts": """
body = torch.optim.SGD(model[0].parameters(), lr=0.01)
head = torch.optim.Adam(model[2].parameters(), lr=0.01)
for _ in range(6):
    for each in (body, head):
        each.zero_grad()
    mse(model(x), y).backward()
    for each in (body, head):
        each.step()
""",
    "sharpness-aware: up, again, down": """
for _ in range(4):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    with torch.no_grad():
        ups = [0.01 * p.grad for p in model.parameters()]
        for p, up in zip(model.parameters(), ups):
            p.add_(up)
    optimizer.zero_grad()
    mse(model(x), y).backward()
    with torch.no_grad():
        for p, up in zip(model.parameters(), ups):
            p.sub_(up)
    optimizer.step()
""",
    "closures": """
lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
def closure():
    lbfgs.zero_grad()
    loss = mse(model(x), y)
    loss.backward()
    return loss
for _ in range(3):
    lbfgs.step(closure)
    lbfgs.step(closure)
""",
    "zero gradients, to initialise the state": """
adam = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(3):
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    adam.step()
    adam.step()
for _ in range(3):
    adam.zero_grad()
    mse(model(x), y).backward()
    adam.step()
""",
    "written into grad.data": """
server = torch.optim.SGD(model.parameters(), lr=1.0)
for p in model.parameters():
    p.grad = torch.zeros_like(p)
for turn in range(4):
    for p in model.parameters():
        p.grad.data.copy_(0.1 * torch.randn_like(p))
    server.step()
""",
    "once only": """
mse(model(x), y).backward()
optimizer.step()
optimizer.step() if y.shape == (3,) else None
optimizer.zero_grad()
""",
    "scaled": """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for _ in range(4):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
}

FAULTY = {
    "once in the helper, once in the loop": """
def update(a, b):
    optimizer.zero_grad()
    loss = mse(model(a), b)
    loss.backward()
    optimizer.step()
    return loss.item()
for _ in range(4):
    update(x, y)
    optimizer.step()  # <- OPT005
""",
    "past the scaler as well": """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for _ in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = mse(model(x).float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.step()  # <- OPT005
""",
    "two optimizers over one encoder": """
encoder, head, other = nn.Linear(6, 4), nn.Linear(4, 1), nn.Linear(4, 1)
first = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.01)
second = torch.optim.Adam([*encoder.parameters(), *other.parameters()], lr=0.01)
for _ in range(4):
    first.zero_grad()
    second.zero_grad()
    code = encoder(x)
    (mse(head(code), y) + mse(other(code), y)).backward()
    first.step()
    second.step()  # <- OPT005
""",
    "accumulation, with an extra step in a class": """
class Trainer:
    def __init__(self):
        self.number = 0
    def micro(self, a, b):
        (mse(model(a), b) / 2).backward()
        self.number += 1
        if self.number % 2 == 0:
            optimizer.step()
            self.end()
    def end(self):
        optimizer.step()  # <- OPT005
        optimizer.zero_grad()
trainer = Trainer()
for _ in range(8):
    trainer.micro(x, y)
""",
    "the same line twice, by a closure": """
def stepping(times):
    def step():
        for _ in range(times):
            optimizer.step()  # <- OPT005
    return step
step = stepping(2)
for _ in range(4):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    step()
""",
    "a backward only every other time": """
for number in range(8):
    if number % 2 == 0:
        optimizer.zero_grad()
        mse(model(x), y).backward()
    optimizer.step()  # <- OPT005
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_MISSES = {
    "two optimizers over one encoder",
    "the same line twice, by a closure",
    "a backward only every other time",
}
"""Faulty scripts that the text alone does not reveal."""

LINT_FINDS = {
    "with a schedule between": """
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
for _ in range(4):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
    scheduler.step()
    optimizer.step()  # <- OPT005
""",
}

LINT_IGNORES = {
    "in two branches of a condition": """
def train(net: nn.Module, optimizer: torch.optim.Optimizer, loader, fast):
    for a, b in loader:
        optimizer.zero_grad()
        mse(net(a), b).backward()
        if fast:
            optimizer.step()
        else:
            optimizer.step()
""",
    "something unknown between": """
from elsewhere import perturb
for _ in range(4):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
    perturb(model)
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", [*(name for name in FAULTY if name not in LINT_MISSES), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FINDS}[name])


@pytest.mark.parametrize("name", [*LINT_MISSES, *CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_IGNORES}[name])
