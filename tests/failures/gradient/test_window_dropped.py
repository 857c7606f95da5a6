"""GRD004: batches at the end of an epoch that do not fill an accumulation window."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(88, 6)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)  # 11 batches
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
"""

FAULTY = {
    "cleared at the start of the epoch": """
for epoch in range(3):
    optimizer.zero_grad()
    for i, (a, b) in enumerate(loader):  # <- GRD004
        (mse(model(a), b) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "added to the next epoch": """
for epoch in range(3):
    for i, (a, b) in enumerate(loader):  # <- GRD004
        (mse(model(a), b) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "in a class with a counter for each epoch": """
class Trainer:
    def __init__(self):
        self.optimizer = torch.optim.AdamW(model.parameters())
    def epoch(self):
        micro = 0
        self.optimizer.zero_grad(set_to_none=True)
        for a, b in loader:  # <- GRD004
            (mse(model(a), b) / 2).backward()
            micro += 1
            if micro == 2:
                micro = 0
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
trainer = Trainer()
for _ in range(3):
    trainer.epoch()
""",
    "cleared by hand": """
def epoch():
    for p in model.parameters():
        p.grad = None
    for i, (a, b) in enumerate(loader):  # <- GRD004
        (mse(model(a), b) / 3).backward()
        if i % 3 == 2:
            optimizer.step()
            for p in model.parameters():
                p.grad = None
for _ in range(3):
    epoch()
""",
    "windows from zip": """
def windows(batches, k):
    it = iter(batches)
    yield from zip(*[it] * k)  # <- GRD004
for epoch in range(3):
    for window in windows(loader, 4):
        optimizer.zero_grad()
        for a, b in window:
            (mse(model(a), b) / 4).backward()
        optimizer.step()
""",
    "a list that is filled, with one backward pass": """
class Trainer:
    def epoch(self):
        kept = []
        for batch in loader:  # <- GRD004
            kept.append(batch)
            if len(kept) == 3:
                loss = sum(mse(model(a), b) for a, b in kept) / 3
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                kept.clear()
for _ in range(3):
    Trainer().epoch()
    with torch.no_grad():
        print(mse(model(x), y))
""",
    "a number of updates": """
for epoch in range(3):
    it = iter(loader)
    for update in range(len(loader) // 3):
        optimizer.zero_grad()
        for a, b in [next(it) for _ in range(3)]:
            (mse(model(a), b, reduction="sum") / 24).backward()
        optimizer.step()
    rest = list(it)  # <- GRD004
""",
}
CORRECT = {
    "the last window is shorter": """
from itertools import islice
for epoch in range(3):
    it = iter(loader)
    while window := list(islice(it, 4)):
        optimizer.zero_grad()
        for a, b in window:
            (mse(model(a), b) / len(window)).backward()
        optimizer.step()
""",
    "a list that is used after the loop": """
def update(kept):
    loss = sum(mse(model(a), b) for a, b in kept) / len(kept)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for epoch in range(3):
    kept = []
    for batch in loader:
        kept.append(batch)
        if len(kept) == 4:
            update(kept)
            kept = []
    if kept:
        update(kept)
""",
    "a list that is kept for the next epoch": """
kept = []
for epoch in range(4):
    for batch in loader:
        kept.append(batch)
        if len(kept) == 4:
            optimizer.zero_grad()
            for a, b in kept:
                (mse(model(a), b) / 4).backward()
            optimizer.step()
            kept = []
""",
    "all batches in a list": """
for epoch in range(3):
    for a, b in list(loader):
        optimizer.zero_grad()
        mse(model(a), b).backward()
        optimizer.step()
""",
    "pairs of batches": """
for epoch in range(3):
    it = iter(loader)
    for (a, b), (c, d) in zip(it, it):
        optimizer.zero_grad()
        (mse(model(a), b) + (model(a).mean() - model(c).mean()).square()).backward()
        optimizer.step()
""",
    "the last batches are for validation": """
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        if i < 9:
            optimizer.zero_grad()
            mse(model(a), b).backward()
            optimizer.step()
        else:
            with torch.no_grad():
                print(mse(model(a), b))
""",
    "a critic with two backward passes, and a generator after some of its steps": """
critic, generator = nn.Linear(8, 1), nn.Linear(4, 8)
critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=0.001)
generator_optimizer = torch.optim.RMSprop(generator.parameters(), lr=0.001)
for step in range(20):
    for _ in range(4):
        critic_optimizer.zero_grad()
        (-critic(torch.randn(16, 8) + 2).mean()).backward()
        critic(generator(torch.randn(16, 4)).detach()).mean().backward()
        critic_optimizer.step()
    generator_optimizer.zero_grad()
    (-critic(generator(torch.randn(16, 4))).mean()).backward()
    generator_optimizer.step()
""",
    "a short window that is stepped": """
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        (mse(model(a), b) / (3 if i > 7 else 4)).backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "stepped after the loop": """
for epoch in range(3):
    for i, (a, b) in enumerate(loader):
        (mse(model(a), b) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a counter that continues across epochs": """
seen = 0
for epoch in range(4):
    for a, b in loader:
        (mse(model(a), b) / 4).backward()
        seen += 1
        if seen % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "a probe after the epoch": """
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        mse(model(a), b).backward()
        optimizer.step()
    mse(model(x), y).backward()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


# Lint --------------------------------------------------------------------------------------------------------

RUN_ONLY = {
    "in a class with a counter for each epoch",
    "windows from zip",
    "a list that is filled, with one backward pass",
    "a number of updates",
}
"""Faulty scripts that lint cannot detect."""

LINT_ONLY = {
    "range": """
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(10):  # <- GRD004
    (model(torch.randn(8, 6)).square().mean() / 4).backward()
    if (i + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()
""",
    "counter from one, window size in a variable": """
class Trainer:
    def __init__(self):
        self.window = 4
        self.opt = torch.optim.AdamW(model.parameters())
    def fit(self):
        data = DataLoader(TensorDataset(torch.rand(100, 6), torch.rand(100, 1)), 10, drop_last=True)
        for number, (a, b) in enumerate(data, start=1):  # <- GRD004
            loss = mse(model(a), b) / self.window
            loss.backward()
            if not number % self.window:
                self.opt.step()
                self.opt.zero_grad()
Trainer().fit()
""",
    "windows of three in twenty iterations": """
scaler = torch.amp.GradScaler("cuda")
accumulate = 3
for epoch in range(5):
    for step in range(0, 20):  # <- GRD004
        loss = mse(model(x), y) / accumulate
        scaler.scale(loss).backward()
        if step % accumulate == accumulate - 1:
            pass
        if (step + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
}

LINT_CORRECT = {
    "the last window is full": """
for i in range(12):
    (mse(model(x), y) / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "unknown number of batches": """
def train(net: nn.Module, loader, opt: torch.optim.Optimizer):
    for i, (a, b) in enumerate(loader):
        (mse(net(a), b) / 4).backward()
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
""",
    "unknown window size": """
def train(args):
    for i in range(10):
        (mse(model(x), y) / args.k).backward()
        if (i + 1) % args.k == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "stepped at the start of the next epoch": """
for epoch in range(3):
    if epoch:
        optimizer.step()
        optimizer.zero_grad()
    for i in range(10):
        (mse(model(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "a function whose caller may step": """
def epoch(net: nn.Module, opt: torch.optim.Optimizer):
    for i in range(10):
        (mse(net(x), y) / 4).backward()
        if (i + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
""",
    "the last batch steps too": """
for i in range(10):
    (mse(model(x), y) / 4).backward()
    if (i + 1) % 4 == 0 or i == 9:
        optimizer.step()
        optimizer.zero_grad()
""",
    "stepped by another function": """
from elsewhere import finish
for i in range(10):
    (mse(model(x), y) / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
finish(optimizer)
""",
    "ragged batches dropped": """
even = DataLoader(TensorDataset(x, y), batch_size=10, drop_last=True)
for i, (a, b) in enumerate(even):
    (mse(model(a), b) / 4).backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "Accelerate sees the end": """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for i, (a, b) in enumerate(loader):
    accelerator.backward(mse(model(a), b))
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - RUN_ONLY), *LINT_ONLY])
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + {**FAULTY, **LINT_ONLY}[name])


@pytest.mark.parametrize("name", [*RUN_ONLY, *CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + {**FAULTY, **CORRECT, **LINT_CORRECT}[name])
