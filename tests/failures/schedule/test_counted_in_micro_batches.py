"""SCH002: a schedule with a length in updates that is stepped once per micro-batch."""

from __future__ import annotations

import pytest

DATA = """
import warnings
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset
warnings.filterwarnings("ignore")
x = torch.randn(240, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=10, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
K, EPOCHS = 4, 2
UPDATES = EPOCHS * len(loader) // K
"""
FAULTY = {
    "cosine": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=UPDATES)
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        loss = F.mse_loss(model(a), b) / K
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()  # <- SCH002
""",
    "certain_only_past_its_end": """
EPOCHS = 80
UPDATES = EPOCHS * len(loader) // K  # as many as 20 epochs have micro-batches
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=UPDATES)
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        loss = F.mse_loss(model(a), b) / K
        loss.backward()
        scheduler.step()  # <- SCH002
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "before_the_step": """
class Trainer:
    def __init__(self):
        warm = lr_scheduler.LinearLR(optimizer, total_iters=2)
        rest = lr_scheduler.CosineAnnealingLR(optimizer, UPDATES - 2)
        self.scheduler = lr_scheduler.SequentialLR(optimizer, [warm, rest], [2])
    def fit(self):
        for _ in range(EPOCHS):
            for i, (a, b) in enumerate(loader):
                self.micro(i, a, b)
    def micro(self, i, a, b):
        (F.mse_loss(model(a), b) / K).backward()
        self.scheduler.step()  # <- SCH002
        if i % K == K - 1:
            optimizer.step()
            optimizer.zero_grad()
Trainer().fit()
""",
    "scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
scheduler = lr_scheduler.PolynomialLR(optimizer, total_iters=UPDATES)
def forever():
    while True:
        yield from loader
for i, (a, b) in zip(range(EPOCHS * len(loader)), forever()):
    scaler.scale(F.mse_loss(model(a), b) / K).backward()
    if i % K == K - 1:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    scheduler.step()  # <- SCH002
""",
    "past_the_end_without_a_loader": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
for i in range(36):
    (F.mse_loss(model(x), x.sum(1, keepdim=True)) / K).backward()
    if i % K == K - 1:
        optimizer.step()
        optimizer.zero_grad()
    scheduler.step()  # <- SCH002
""",
}
LOOP = """
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(model(a), b) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
"""
CORRECT = {
    "length_in_micro_batches": "scheduler = lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))" + LOOP,
    "one_cycle_in_micro_batches": "scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=EPOCHS, "
    "steps_per_epoch=len(loader))" + LOOP,
    "no_length": "scheduler = lr_scheduler.ExponentialLR(optimizer, 0.99)" + LOOP,
    "with_the_update": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(model(a), b) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
""",
    "no_accumulation": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))
for epoch in range(EPOCHS):
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a), b).backward()
        optimizer.step()
        scheduler.step()
""",
    "two_losses_of_one_batch": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 2 * len(loader))
for epoch in range(2):
    for a, b in loader:
        out = model(a)
        F.mse_loss(out, b).backward(retain_graph=True)
        (0.1 * out.abs().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
""",
    "several_advances_per_update": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 2 * EPOCHS * len(loader))
for epoch in range(EPOCHS):
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a), b).backward()
        optimizer.step()
        for _ in range(2):
            scheduler.step()
""",
    "generator_every_few": """
other = nn.Linear(6, 1)
second = torch.optim.Adam(other.parameters(), lr=0.01)
scheduler = lr_scheduler.CosineAnnealingLR(second, EPOCHS * len(loader))
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        F.mse_loss(model(a), b).backward()
        optimizer.step()
        if i % 4 == 3:
            second.zero_grad()
            F.mse_loss(other(a), b).backward()
            second.step()
        scheduler.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "4 times per update" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(DATA + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_MISSES = {"past_the_end_without_a_loader"}
"""A literal number does not show what it counts."""

LINT_FINDS = {
    "linear, of transformers, with arguments": """
import math
from transformers import get_linear_schedule_with_warmup
def main(args, net: nn.Module, train_loader: DataLoader):
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
    per_epoch = math.ceil(len(train_loader) / args.accumulate)
    total = args.epochs * per_epoch
    sched = get_linear_schedule_with_warmup(opt, num_warmup_steps=int(0.1 * total), num_training_steps=total)
    for epoch in range(args.epochs):
        for step, batch in enumerate(train_loader):
            loss = net(**batch).loss / args.accumulate
            loss.backward()
            if step % args.accumulate == 0 or step == len(train_loader) - 1:
                opt.step()
                opt.zero_grad()
            sched.step()  # <- SCH002
""",
    "one cycle, with AMP, in a class": """
class Trainer:
    def __init__(self, net: nn.Module, loader: DataLoader, every: int, epochs: int):
        self.net, self.loader, self.every, self.epochs = net, loader, every, epochs
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.sched = lr_scheduler.OneCycleLR(
            self.opt, max_lr=0.1, epochs=epochs, steps_per_epoch=max(1, len(loader) // every)
        )
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self):
        for _ in range(self.epochs):
            for i, (a, b) in enumerate(self.loader):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.mse_loss(self.net(a), b) / self.every
                self.scaler.scale(loss).backward()
                if (i + 1) % self.every == 0:
                    self.scaler.step(self.opt)
                    self.scaler.update()
                    self.opt.zero_grad()
                self.sched.step()  # <- SCH002
""",
    "an iteration without an update continues": """
scheduler = lr_scheduler.LinearLR(optimizer, 1.0, 0.0, -(-EPOCHS * len(loader) // K))
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(model(a), b) / K).backward()
        scheduler.step()  # <- SCH002
        if (i + 1) % K != 0:
            continue
        optimizer.step()
        optimizer.zero_grad()
""",
}

LINT_IGNORES = {
    "a length that is multiplied again": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * (len(loader) // K) * K)
"""
    + LOOP,
    "an unknown length": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, int(config["steps"]))
"""
    + LOOP,
    "in the same condition, written again": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(model(a), b) / K).backward()
        update = (i + 1) % K == 0
        if update:
            optimizer.step()
        if update:
            scheduler.step()
            optimizer.zero_grad()
""",
    "another optimizer's": """
other = nn.Linear(6, 1)
second = torch.optim.Adam(other.parameters(), lr=0.01)
scheduler = lr_scheduler.CosineAnnealingLR(second, UPDATES)
for i, (a, b) in enumerate(loader):
    (F.mse_loss(model(a), b) / K).backward()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
    scheduler.step()
""",
    "accumulated by Accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=K)
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for a, b in loader:
    with accelerator.accumulate(model):
        accelerator.backward(F.mse_loss(model(a), b))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
""",
    "the rate of an epoch of several windows": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS, eta_min=0.05 / K)
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(model(a), b) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
""",
}


@pytest.mark.parametrize("name", [*(FAULTY.keys() - LINT_MISSES), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(DATA + {**FAULTY, **LINT_FINDS}[name], fixes=True)


@pytest.mark.parametrize("name", [*LINT_MISSES, *CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(DATA + {**FAULTY, **CORRECT, **LINT_IGNORES}[name])


# Schedules of the program's own -----------------------------------------------------------------------------------

OWN_HEAD = (
    DATA
    + """
class Decay:
    def __init__(self, opt, warmup, total, power=1.0):
        self.opt, self.warmup, self.total, self.power = opt, max(1, warmup), total, power
        self.base, self.last = [g["lr"] for g in opt.param_groups], 0
    def factor(self):
        if self.last < self.warmup:
            return (self.last + 1) / self.warmup
        return (max(0, self.total - self.last) / (self.total - self.warmup)) ** self.power
    def step(self):
        self.last += 1
        for g, b in zip(self.opt.param_groups, self.base):
            g["lr"] = b * self.factor()
"""
)
OWN = {
    "a class, the update in the other arm": """
import argparse
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=4)
    args = parser.parse_args()
    total = len(loader) * EPOCHS // args.every
    sched = Decay(optimizer, int(total * 0.1), total, power=2)
    count = 0
    for epoch in range(EPOCHS):
        for a, b in loader:
            count += 1
            waits = count % args.every != 0
            loss = F.mse_loss(model(a), b) / args.every
            if waits:
                loss.backward()
            else:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            sched.step()  # <- SCH002
main()
""",
    "a lambda": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / UPDATES))
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(model(a), b) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()  # <- SCH002
""",
    "a function in a trainer": """
class Trainer:
    def __init__(self, net, every, epochs):
        self.net, self.every, self.epochs = net, every, epochs
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        per_epoch = -(-len(loader) // every)
        self.steps = epochs * per_epoch
        self.sched = lr_scheduler.LambdaLR(self.opt, self.factor)
    def factor(self, step):
        return 1.0 - step / self.steps
    def fit(self):
        for epoch in range(self.epochs):
            for i, (a, b) in enumerate(loader):
                (F.mse_loss(self.net(a), b) / self.every).backward()
                if (i + 1) % self.every == 0:
                    self.opt.step()
                    self.opt.zero_grad()
                self.sched.step()  # <- SCH002
Trainer(model, K, EPOCHS).fit()
""",
}
OWN_FINE = {
    "stepped with the update": """
sched = Decay(optimizer, 1, UPDATES)
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(model(a), b) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
            sched.step()
""",
    "a length in micro-batches": """
sched = Decay(optimizer, 1, EPOCHS * len(loader))
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(model(a), b) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        sched.step()
""",
    "the counter is divided too": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - (step // K) / UPDATES))
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(model(a), b) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
""",
    "a length that is multiplied again": """
sched = Decay(optimizer, 1, UPDATES * K)
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(model(a), b) / K).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()
        sched.step()
""",
}


@pytest.mark.parametrize("name", OWN)
def test_lint_reports_own_schedules_per_micro_batch(lint_reports, name):
    lint_reports(OWN_HEAD + OWN[name])


@pytest.mark.parametrize("name", OWN_FINE)
def test_lint_accepts_own_schedules(lint_is_clean, name):
    lint_is_clean(OWN_HEAD + OWN_FINE[name], "SCH002")
