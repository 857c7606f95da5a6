"""PRC004: steps that the next forward does not see."""

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

QUIET = {
    "around the forward": """
for _ in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = mse(model(x), y)
    loss.backward()
    optimizer.step()
""",
    "around a whole update, entered anew": """
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
    "without copies": """
with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
    for _ in range(6):
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()
""",
    "copies that are dropped": """
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
    "evaluated in one": """
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
    "a teacher whose copies are kept, a student in float32": """
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

GUILTY = {
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


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_it_is_found(run_reports, script):
    run_reports(HEAD + script)


# The rule --------------------------------------------------------------------------------------------------------

WRITTEN = {
    "in a file that knows patterns": """
import re
NAME = re.compile("[a-z]+")
with torch.autocast("cpu", dtype=torch.bfloat16):
    while NAME.match("a"):
        mse(model(x), y).backward()
        optimizer.step()  # <- PRC004
        optimizer.zero_grad()
""",
    "the older spelling, switched by a setting": """
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

UNWRITTEN = {
    "one turn": """
for _ in range(6):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(1):
            optimizer.zero_grad()
            mse(model(x), y).backward()
            optimizer.step()
""",
    "compiled, which casts anew": """
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


@pytest.mark.parametrize("name", [*GUILTY, *WRITTEN])
def test_the_rule_finds_it(lint_reports, name):
    lint_reports(HEAD + {**GUILTY, **WRITTEN}[name], fixes=False)


@pytest.mark.parametrize("name", [*QUIET, *UNWRITTEN])
def test_the_rule_leaves_others_alone(lint_is_clean, name):
    lint_is_clean(HEAD + {**QUIET, **UNWRITTEN}[name])
