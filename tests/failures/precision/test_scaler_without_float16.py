"""PRC002: a GradScaler with bfloat16."""

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

FAULTY = {
    "autocast around the loss": """
scaler = torch.amp.GradScaler("cpu")
for _ in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = mse(model(x), y)
    scaler.scale(loss).backward()  # <- PRC002
    scaler.step(optimizer)
    scaler.update()
""",
    "in a class": """
class Trainer:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    def loss(self):
        with torch.autocast("cpu", torch.bfloat16):
            return mse(model(x).float(), y)
    def update(self):
        optimizer.zero_grad(set_to_none=True)
        scaled = self.scaler.scale(self.loss())  # <- PRC002
        scaled.backward()
        self.scaler.step(optimizer)
        self.scaler.update()
trainer = Trainer()
for _ in range(6):
    trainer.update()
""",
    "accumulation, unscaled and clipped": """
scaler = torch.amp.GradScaler("cpu")
autocast = torch.autocast("cpu", dtype=torch.bfloat16)
for number in range(8):
    with autocast:
        out = model(x)
    scaler.scale(mse(out.float(), y) / 2).backward()  # <- PRC002
    if number % 2:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
    "a closure, autocast as a decorator": """
scaler = torch.amp.GradScaler("cpu")
@torch.autocast("cpu", dtype=torch.bfloat16)
def loss_of(a, b):
    return mse(model(a), b)
def make(backward):
    def update():
        optimizer.zero_grad()
        backward(loss_of(x, y))
        scaler.step(optimizer)
        scaler.update()
    return update
update = make(lambda loss: scaler.scale(loss).backward())  # <- PRC002
for _ in range(6):
    update()
""",
}

CORRECT = {
    "float16": """
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for _ in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = mse(model(x).float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "switched off with bfloat16": """
kind = torch.bfloat16
scaler = torch.amp.GradScaler("cpu", enabled=kind == torch.float16)
for _ in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=kind):
        loss = mse(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "bfloat16 without a scaler": """
for _ in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = mse(model(x), y)
    loss.backward()
    optimizer.step()
""",
    "autocast within the forward, of whatever type": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, a):
        with torch.autocast("cpu", dtype=torch.float16):
            return self.inner(a).float()
net = Net()
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for _ in range(6):
    optimizer.zero_grad()
    scaler.scale(mse(net(x), y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "evaluated in bfloat16": """
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for _ in range(6):
    model.train()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = mse(model(x).float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)
""",
    "a teacher in bfloat16, called last": """
import copy
teacher = copy.deepcopy(model).eval()
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
for _ in range(6):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x).float()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        goal = teacher(x).float()
    scaler.scale(mse(out, goal + y)).backward()
    scaler.step(optimizer)
    scaler.update()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_MISSES: set[str] = set()
"""Faulty scripts that the text alone does not reveal."""

LINT_FINDS = {
    "the deprecated name": """
from torch.cuda.amp import GradScaler, autocast
def train(net: nn.Module, opt: torch.optim.Optimizer, loader, criterion):
    scaler = GradScaler()
    for a, b in loader:
        opt.zero_grad()
        with autocast(dtype=torch.bfloat16):
            loss = criterion(net(a), b)
        scaler.scale(loss).backward()  # <- PRC002
        scaler.step(opt)
        scaler.update()
""",
    "switched on, with a type by name": """
amp_dtype = torch.bfloat16
class Trainer:
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cuda", enabled=True)  # for AMP
    def step(self, a, b):
        with torch.autocast(device_type="cuda", dtype=amp_dtype):
            out = model(a)
            loss = mse(out, b)
        self.scaler.scale(loss / 4).backward()  # <- PRC002
""",
    "over several lines": """
scaler = torch.amp.GradScaler(
    "cuda",
    init_scale=2.0**10,  # as before
)
for _ in range(6):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=True):
        loss = mse(model(x), y)
    scaler.scale(loss).backward()  # <- PRC002
    scaler.step(optimizer)
    scaler.update()
""",
}

LINT_IGNORES = {
    "a type from outside": """
def train(net: nn.Module, dtype, loader):
    scaler = torch.amp.GradScaler("cuda")
    for a, b in loader:
        with torch.autocast("cuda", dtype=dtype):
            loss = mse(net(a), b)
        scaler.scale(loss).backward()
""",
    "one of two types": """
dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
scaler = torch.amp.GradScaler("cuda")
for _ in range(6):
    with torch.autocast("cuda", dtype=dtype):
        loss = mse(model(x), y)
    scaler.scale(loss).backward()
""",
    "nanoGPT's": """
dtype = "bfloat16"
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
ctx = torch.amp.autocast(device_type="cuda", dtype=ptdtype)
scaler = torch.cuda.amp.GradScaler(enabled=(dtype == "float16"))
for _ in range(6):
    optimizer.zero_grad()
    with ctx:
        loss = mse(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    "the default type": """
scaler = torch.cuda.amp.GradScaler()
for _ in range(6):
    with torch.autocast("cuda"):
        loss = mse(model(x), y)
    scaler.scale(loss).backward()
""",
    "two models in two types": """
other = nn.Linear(6, 1)
scaler = torch.cuda.amp.GradScaler()
for _ in range(6):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        one = model(x)
    with torch.autocast("cuda", dtype=torch.float16):
        two = other(x)
    scaler.scale(mse(one.float(), two.float())).backward()
""",
    "a custom scaler class": """
from elsewhere import GradScaler
scaler = GradScaler()
for _ in range(6):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = mse(model(x), y)
    scaler.scale(loss).backward()
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - LINT_MISSES), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_FINDS}[name], fixes=True)


@pytest.mark.parametrize("name", [*LINT_MISSES, *CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_IGNORES}[name])
