"""PRC004: steps inside the autocast of the forward."""

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
    "around the forward": """
for _ in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = mse(model(x), y)
    loss.backward()
    optimizer.step()
""",
    "around one update, entered again": """
autocast = torch.autocast("cpu", dtype=torch.bfloat16)
def update():
    with autocast:
        optimizer.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        optimizer.step()
for _ in range(6):
    update()
""",
    "several micro-batches in one, stepped in it": """
for _ in range(4):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for part in (x[:48], x[48:]):
            (mse(model(part), y[: len(part)]) / 2).backward()
        optimizer.step()
    optimizer.zero_grad()
""",
    "without a cache": """
with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
    for _ in range(6):
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()
""",
    "a cleared cache": """
with torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(6):
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()
        torch.clear_autocast_cache()
""",
    "weights in the lower type": """
model.bfloat16()
with torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(6):
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()
""",
    "switched off": """
with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
    for _ in range(6):
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()
""",
    "evaluated under one autocast": """
for _ in range(3):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for part in (x[:48], x[48:]):
            model(part)
    model.train()
""",
    "a teacher with cached casts, a student in float32": """
teacher = nn.Linear(6, 1)
with torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(6):
        with torch.no_grad():
            goal = teacher(x).float()
        with torch.autocast("cpu", enabled=False):
            loss = mse(model(x), goal + y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
}

FAULTY = {
    "around the loop": """
with torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(6):
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()  # <- PRC004
""",
    "around the call of the epoch": """
def train_epoch(net, opt):
    for _ in range(6):
        opt.zero_grad()
        loss = mse(net(x), y)
        loss.backward()
        opt.step()  # <- PRC004
for epoch in range(2):
    with torch.amp.autocast("cpu", torch.bfloat16):
        train_epoch(model, optimizer)
""",
    "as a decorator, with a scaler and accumulation, in a class": """
class Trainer:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    @torch.autocast("cpu", dtype=torch.float16)
    def fit(self):
        for number in range(8):
            loss = mse(model(x).float(), y) / 2
            self.scaler.scale(loss).backward()
            if number % 2:
                self.scaler.step(optimizer)  # <- PRC004
                self.scaler.update()
                optimizer.zero_grad()
Trainer().fit()
""",
    "another one inside does not help": """
with torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(6):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse(model(x), y)
        loss.backward()
        optimizer.step()  # <- PRC004
        optimizer.zero_grad()
""",
    "two optimizers, a closure": """
head = nn.Linear(1, 1)
second = torch.optim.Adam(head.parameters(), lr=0.01)
def make(context):
    def fit():
        with context:
            for _ in range(6):
                optimizer.zero_grad()
                second.zero_grad()
                mse(model(x), y).backward()
                mse(head(y), y).backward()
                optimizer.step()  # <- PRC004
                second.step()  # <- PRC004
    return fit
make(torch.autocast("cpu", dtype=torch.bfloat16))()
""",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_FINDS = {
    "in a file that uses re.compile": """
import re
NAME = re.compile("[a-z]+")
with torch.autocast("cpu", dtype=torch.bfloat16):
    while NAME.match("a"):
        mse(model(x), y).backward()
        optimizer.step()  # <- PRC004
        optimizer.zero_grad()
""",
    "the deprecated name, switched by a setting": """
from torch.cuda.amp import autocast
def train(net: nn.Module, opt: torch.optim.Optimizer, loader, use_amp):
    opt = torch.optim.AdamW(net.parameters())
    with autocast(enabled=use_amp):
        for a, b in loader:
            loss = mse(net(a), b)
            loss.backward()
            opt.step()  # <- PRC004
            opt.zero_grad()
""",
}

LINT_IGNORES = {
    "one iteration": """
for _ in range(6):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(1):
            optimizer.zero_grad()
            mse(model(x), y).backward()
            optimizer.step()
""",
    "compiled, which casts again": """
compiled = torch.compile(model)
with torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(6):
        mse(compiled(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "a function that is compiled": """
@torch.compile
def loss_of(a, b):
    return mse(model(a), b)
with torch.autocast("cpu", dtype=torch.bfloat16):
    for _ in range(6):
        loss_of(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "a context from elsewhere": """
from elsewhere import context
with context():
    for _ in range(6):
        mse(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", [*FAULTY, *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FINDS}[name], fixes=False)


@pytest.mark.parametrize("name", [*CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**CORRECT, **LINT_IGNORES}[name])
