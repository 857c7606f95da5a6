"""SCH004: updates at a learning rate of zero."""

from __future__ import annotations

import pytest

DATA = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update():
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
FAULTY = {
    "steps_of_epochs_in_batches": """
scheduler = lr_scheduler.StepLR(optimizer, 2, gamma=0.1)
for epoch in range(6):
    for _ in range(40):
        update()
        scheduler.step()  # <- SCH004
""",
    "milestones_of_epochs_in_batches": """
class Trainer:
    def __init__(self):
        self.schedule = lr_scheduler.ExponentialLR(optimizer, 0.5)
    def batch(self):
        update()
        self.schedule.step()  # <- SCH004
trainer = Trainer()
for epoch in range(4):
    for _ in range(60):
        trainer.batch()
""",
    "a_whole_first_epoch": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, epoch / 3))
for epoch in range(5):
    for _ in range(4):
        update()
    scheduler.step()  # <- SCH004
""",
    "long_first_epoch": """
class Warm:
    def __init__(self):
        self.scheduler = lr_scheduler.LambdaLR(optimizer, self.rate)
    def rate(self, epoch):
        return 0.0 if epoch < 1 else 0.9 ** epoch
    def end(self):
        self.scheduler.step()  # <- SCH004
warm = Warm()
for epoch in range(3):
    for _ in range(50):
        update()
    warm.end()
""",
    "integer_division": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step // 10))
for _ in range(15):
    update()
    scheduler.step()  # <- SCH004
""",
    "decay_to_almost_zero": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 5))
def after():
    scheduler.step()  # <- SCH004
for _ in range(12):
    (F.mse_loss(model(x), y) / 2).backward()
    (F.mse_loss(model(x), y) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
    after()
""",
}
FAULTY |= {
    "a decay per epoch that is applied per batch": """
def main():
    scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    for epoch in range(25):
        for _ in range(8):
            update()
            scheduler.step()  # <- SCH004
main()
""",
}
FAULTY["a rate that is lowered in each batch"] = """
for epoch in range(8):
    for _ in range(40):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # <- SCH004
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
"""
FAULTY["a rate that is lowered in each batch of a shorter run"] = """
for epoch in range(10):
    for _ in range(16):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # <- SCH004
        optimizer.param_groups[0]["lr"] *= 0.9
"""
FAULTY["an exponential schedule of a shorter run"] = """
schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
for epoch in range(10):
    for _ in range(16):
        update()
        schedule.step()  # <- SCH004
"""
CORRECT = {
    "a rate like 1 / t": """
for t in range(1, 200):
    optimizer.param_groups[0]["lr"] = 0.1 / t
    update()
""",
    "a factor of 0.999 in each update": """
for t in range(200):
    update()
    optimizer.param_groups[0]["lr"] *= 0.999
""",
    "a cosine to zero, by hand": """
import math
for t in range(200):
    optimizer.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * t / 200))
    update()
""",
    "a rate that is lowered in each epoch": """
for epoch in range(10):
    for _ in range(20):
        update()
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
""",
    "a second stage with a small rate": """
for stage, rate in enumerate((0.1, 1e-5)):
    for group in optimizer.param_groups:
        group["lr"] = rate
    for _ in range(60 + 60 * stage):
        update()
""",
    "a decay per batch that ends at a thousandth": """
scheduler = lr_scheduler.ExponentialLR(optimizer, gamma=0.001 ** (1 / 200))
for _ in range(200):
    update()
    scheduler.step()
""",
    "a decay per epoch to almost nothing at the end": """
scheduler = lr_scheduler.StepLR(optimizer, 20, gamma=0.1)
for _ in range(100):
    update()
    scheduler.step()
""",
    "a cosine that hands over to the rate of an average": """
from torch.optim.swa_utils import SWALR
cosine, average = lr_scheduler.CosineAnnealingLR(optimizer, 3), SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
for epoch in range(6):
    for _ in range(20):
        update()
    (cosine if epoch < 3 else average).step()
""",
    "first_update_of_a_warm_up": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 5))
for _ in range(10):
    update()
    scheduler.step()
""",
    "cycles_that_touch_zero": """
scheduler = lr_scheduler.CyclicLR(optimizer, 0.0, 0.1, step_size_up=3)
for _ in range(40):
    update()
    scheduler.step()
""",
    "one_group_frozen": """
head = nn.Linear(6, 1)
optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": head.parameters()}], lr=0.1)
scheduler = lr_scheduler.LambdaLR(optimizer, [lambda e: 1.0, lambda e: 0.0 if e < 3 else 1.0])
for _ in range(8):
    optimizer.zero_grad()
    F.mse_loss(model(x) + head(x), y).backward()
    optimizer.step()
    scheduler.step()
""",
    "another_optimizer_trains_meanwhile": """
head = nn.Linear(6, 1)
second = torch.optim.SGD(head.parameters(), lr=0.1)
scheduler = lr_scheduler.LambdaLR(optimizer, lambda e: 0.0 if e < 2 else 1.0)
for epoch in range(4):
    for _ in range(3):
        for each in (optimizer, second):
            each.zero_grad()
        F.mse_loss(model(x) + head(x), y).backward()
        for each in (optimizer, second):
            each.step()
    scheduler.step()
""",
    "rate_zero_by_hand": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for _ in range(5):
    update()
""",
    "ends_at_zero": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 6))
for _ in range(7):
    update()
    scheduler.step()
""",
    "cosine_to_its_end": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=300)
for _ in range(300):
    update()
    scheduler.step()
""",
    "long_decays": """
scheduler = lr_scheduler.ChainedScheduler([
    lr_scheduler.PolynomialLR(optimizer, total_iters=150, power=4.0), lr_scheduler.ExponentialLR(optimizer, 0.96),
])
for _ in range(150):
    update()
    scheduler.step()
""",
    "plateau": """
scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
for _ in range(8):
    update()
    scheduler.step(1.0)
""",
    "read_beforehand": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: step / 5)
import warnings
warnings.filterwarnings("ignore")
rates = [scheduler.get_last_lr()[0]]
scheduler.step()
for _ in range(4):
    update()
    rates.append(scheduler.get_last_lr()[0])
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    message = run_reports(DATA + script).findings[0].message
    rates = (
        "rate of 0",
        "less than 1e-13, where it was 0.1 before",
        "at most 1e-05, where it was 0.1 before",
        "at most 1e-07, where it was 0.1 before",
    )
    assert any(each in message for each in rates)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(DATA + script)


LINT_HEAD = """
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, StepLR
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update(a, b):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
"""
DECAYS = {
    "groups": """
for epoch in range(8):
    for a, b in loader:
        update(a, b)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9  # <- SCH004
""",
    "first group, constant": """
DECAY = 0.95
for epoch in range(8):
    for i, (a, b) in enumerate(loader):
        update(a, b)
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"] * DECAY  # <- SCH004
""",
    "variable": """
rate = 0.1
for epoch in range(8):
    for rows in torch.randperm(64).split(8):
        update(data.tensors[0][rows], data.tensors[1][rows])
        rate *= 0.97
        for g in optimizer.param_groups:
            g["lr"] = rate  # <- SCH004
""",
    "function": """
def decay(opt, factor=0.5):
    for g in opt.param_groups:
        g["lr"] = 0.98 * g["lr"]  # <- SCH004
for epoch in range(8):
    for a, b in loader:
        update(a, b)
        decay(optimizer)
""",
    "divided": """
def train(batches, opt):
    for a, b in batches:
        opt.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        opt.step()
        opt.param_groups[0]["lr"] /= 1.1  # <- SCH004
for epoch in range(8):
    train(loader, optimizer)
""",
    "scheduler": """
schedule = ExponentialLR(optimizer, gamma=0.95)
for epoch in range(8):
    for a, b in loader:
        update(a, b)
        schedule.step()  # <- SCH004
""",
    "scheduler in a function": """
def epoch_of(batches, opt, schedule):
    for a, b in batches:
        opt.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        opt.step()
        schedule.step()  # <- SCH004
schedule = StepLR(optimizer, step_size=1, gamma=0.9)
for epoch in range(8):
    epoch_of(loader, optimizer, schedule)
""",
}
NO_DECAYS = {
    "per epoch": """
schedule = ExponentialLR(optimizer, gamma=0.95)
for epoch in range(8):
    for a, b in loader:
        update(a, b)
    schedule.step()
    for group in optimizer.param_groups:
        group["lr"] *= 0.9
""",
    "slow": """
schedule = ExponentialLR(optimizer, gamma=0.9999)
for epoch in range(8):
    for a, b in loader:
        update(a, b)
        schedule.step()
        optimizer.param_groups[0]["lr"] *= 0.9998
""",
    "under a condition": """
for epoch in range(8):
    for i, (a, b) in enumerate(loader):
        update(a, b)
        if i % 100 == 0:
            optimizer.param_groups[0]["lr"] *= 0.9
""",
    "restarts": """
for epoch in range(8):
    optimizer.param_groups[0]["lr"] = 0.1
    for i, (a, b) in enumerate(loader):
        update(a, b)
        optimizer.param_groups[0]["lr"] *= 0.9
""",
    "1 / t": """
for epoch in range(8):
    for i, (a, b) in enumerate(loader, 1):
        update(a, b)
        optimizer.param_groups[0]["lr"] = 0.1 / i
""",
    "rate finder": """
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        update(a, b)
        optimizer.param_groups[0]["lr"] *= 1.1
""",
    "skips most batches": """
for epoch in range(8):
    for i, (a, b) in enumerate(loader):
        update(a, b)
        if (i + 1) % 50:
            continue
        optimizer.param_groups[0]["lr"] *= 0.9
""",
}


@pytest.mark.parametrize("script", DECAYS.values(), ids=DECAYS)
def test_lint_reports_a_decay_after_every_batch(lint_reports, script):
    lint_reports(LINT_HEAD + script)


@pytest.mark.parametrize("script", NO_DECAYS.values(), ids=NO_DECAYS)
def test_lint_accepts_other_decays(lint_is_clean, script):
    lint_is_clean(LINT_HEAD + script, "SCH004")


COMPOUNDING_HEAD = """
import math
import torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update():
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""

COMPOUNDING = {
    "cosine in a method": """
class Cosine:
    def __init__(self, opt, total):
        self.opt, self.total, self.n_step = opt, total, 0
    def factor(self):
        return 0.5 * (1 + math.cos(math.pi * self.n_step / self.total))
    def advance(self):
        self.n_step += 1
        for group in self.opt.param_groups:
            group["lr"] *= self.factor()  # <- SCH004
schedule = Cosine(optimizer, 100)
for _ in range(100):
    update()
    schedule.advance()
""",
    "function of the epoch": """
def adjust(opt, epoch, gamma=0.9):
    scale = gamma ** (epoch // 2)
    for group in opt.param_groups:
        group["lr"] = group["lr"] * scale  # <- SCH004
for epoch in range(10):
    adjust(optimizer, epoch)
    update()
""",
    "in the loop": """
total = 200
for step in range(total):
    update()
    for g in optimizer.param_groups:
        lr = g["lr"]
        g["lr"] = lr * (1 - step / total)  # <- SCH004
""",
    "own attribute": """
class Fit:
    def __init__(self, lr=0.1):
        self.lr, self.done_steps = lr, 0
    def decay(self):
        self.done_steps += 1
        self.lr = self.lr * (1 - self.done_steps / 500) ** 0.9  # <- SCH004
        optimizer.param_groups[0]["lr"] = self.lr
fit = Fit()
for _ in range(500):
    update()
    fit.decay()
""",
    "multiplicative": """
schedule = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lr_lambda=lambda e: 0.95 ** e)  # <- SCH004
for epoch in range(20):
    update()
    schedule.step()
""",
    "local variable, time decay": """
def train(rate, decay):
    for epoch in range(50):
        rate *= 1 / (1 + decay * epoch)  # <- SCH004
        for group in optimizer.param_groups:
            group["lr"] = rate
        update()
train(0.1, 0.01)
""",
}
FIRST_RATES = {
    "base rate, layers, milestones, constant, ratio": """
for i, group in enumerate(optimizer.param_groups):
    group["lr"] *= 0.9 ** i
base = [g["lr"] for g in optimizer.param_groups]
def adjust(opt, lr, epoch):
    lr = lr * (0.1 ** (epoch // 30))
    for group in opt.param_groups:
        group["lr"] = lr
class Poly:
    def __init__(self, opt, total):
        self.opt, self.total, self.step_no = opt, total, 0
        self.base = [g["lr"] for g in opt.param_groups]
    def step(self):
        self.step_no += 1
        for g, b in zip(self.opt.param_groups, self.base):
            g["lr"] = b * (1 - self.step_no / self.total)
    def chained(self):
        for g in self.opt.param_groups:
            g["lr"] *= (1 - self.step_no / self.total) / (1 - (self.step_no - 1) / self.total)
    def straight(self):
        for g in self.opt.param_groups:
            g["lr"] *= 1 - 1 / (self.total - self.step_no)
    def reset(self):
        for g in self.opt.param_groups:
            g["lr"] = g["initial_lr"]
            g["lr"] *= 0.5 ** self.step_no
poly = Poly(optimizer, 100)
multiplicative = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.95)
later = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.1 if epoch in (30, 60) else 1.0)
for epoch in range(100):
    adjust(optimizer, 0.1, epoch)
    update()
    poly.step()
    if epoch in (50, 75):
        for g in optimizer.param_groups:
            g["lr"] *= 0.1
    if epoch % 10 == 9:
        optimizer.param_groups[0]["lr"] *= 0.5
    for g in optimizer.param_groups:
        g["lr"] = g["lr"] * (0.5 if epoch == 40 else 1.0)
""",
    "by the loss, batch size": """
bad_steps = 0
world = 4
for g in optimizer.param_groups:
    g["lr"] *= world / 2
for step in range(100):
    update()
    ratio = 1.1 if step < 3 else 0.9
    for g in optimizer.param_groups:
        g["lr"] *= ratio
""",
}


@pytest.mark.parametrize("script", COMPOUNDING.values(), ids=COMPOUNDING)
def test_lint_reports_a_decay_that_compounds(lint_reports, script):
    lint_reports(COMPOUNDING_HEAD + script)


@pytest.mark.parametrize("script", FIRST_RATES.values(), ids=FIRST_RATES)
def test_lint_accepts_decays_of_the_first_rate(lint_is_clean, script):
    lint_is_clean(COMPOUNDING_HEAD + script)


ENDED_HEAD = """
import torch
from torch import nn
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

model = nn.Linear(6, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = [torch.randn(8, 6) for _ in range(40)]
def fit(scheduler, epochs=3):
    for epoch in range(epochs):
        for x in loader:
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            scheduler.step()
"""

ENDED = {
    "minus one": """
WARMUP_STEPS = 5000
scheduler = get_linear_schedule_with_warmup(  # <- SCH004
    optimizer, num_warmup_steps=WARMUP_STEPS, num_training_steps=-1)
fit(scheduler)
""",
    "by position": "fit(get_cosine_schedule_with_warmup(optimizer, 50, -1))  # <- SCH004",
    "shorter than the warm-up": """
total = 1000
fit(get_linear_schedule_with_warmup(optimizer, num_warmup_steps=2000, num_training_steps=total))  # <- SCH004
""",
    "in a class": """
class Trainer:
    def __init__(self, steps):
        self.scheduler = get_linear_schedule_with_warmup(  # <- SCH004
            optimizer, num_warmup_steps=steps, num_training_steps=-1)
fit(Trainer(200).scheduler)
""",
}

NOT_ENDED = {
    "all updates": "fit(get_linear_schedule_with_warmup(optimizer, 10, 3 * len(loader)))",
    "a written number": "fit(get_linear_schedule_with_warmup(optimizer, 10, num_training_steps=1000))",
    "a default that is replaced": """
def build(total=-1):
    if total == -1:
        total = 3 * len(loader)
    return get_linear_schedule_with_warmup(optimizer, 10, total)
fit(build())
""",
    "an unknown number": """
def build(total=-1):
    return get_linear_schedule_with_warmup(optimizer, 10, num_training_steps=total)
fit(build(3 * len(loader)))
""",
    "set later": """
total = 0
for epoch in range(3):
    total += len(loader)
fit(get_linear_schedule_with_warmup(optimizer, 10, total))
""",
}


@pytest.mark.parametrize("script", ENDED.values(), ids=ENDED)
def test_lint_reports_a_schedule_that_ends_with_its_warm_up(lint_reports, script):
    lint_reports(ENDED_HEAD + script)


@pytest.mark.parametrize("script", NOT_ENDED.values(), ids=NOT_ENDED)
def test_lint_accepts_schedules_that_last(lint_is_clean, script):
    lint_is_clean(ENDED_HEAD + script, "SCH004")


HOOKED = """
import torch
from torch import nn
class Decay:
    def __init__(self, scheduler):
        self.scheduler = scheduler
    def %s
class Trainer:
    def __init__(self, model, optimizer, callbacks):
        self.model, self.optimizer, self.callbacks = model, optimizer, callbacks
    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()
            for each in self.callbacks:
                each.on_batch_end(self)
model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters())
scheduler = torch.optim.lr_scheduler.%s
Trainer(model, optimizer, [Decay(scheduler)]).fit(loader)
"""
IN_HOOKS = {
    "a callback": HOOKED
    % (
        "on_batch_end(self, trainer):\n        self.scheduler.step()  # <- SCH004",
        "ExponentialLR(optimizer, gamma=0.9)",
    ),
    "an option": HOOKED
    % (
        "on_train_batch_end(self, *args):\n        self.scheduler.step()  # <- SCH004",
        "ExponentialLR(optimizer, args.gamma)",
    )
    + "\nparser.add_argument('--gamma', type=float, default=0.95)\n",
    "another name": HOOKED
    % ("after_step(self):\n        self.scheduler.step()  # <- SCH004", "ExponentialLR(optimizer, 0.5)"),
}
NOT_IN_HOOKS = {
    "after each epoch": HOOKED
    % ("on_epoch_end(self, trainer):\n        self.scheduler.step()", "ExponentialLR(optimizer, gamma=0.9)"),
    "a slow decay": HOOKED
    % ("on_batch_end(self, trainer):\n        self.scheduler.step()", "ExponentialLR(optimizer, gamma=0.9999)"),
    "a schedule of steps": HOOKED
    % ("on_batch_end(self, trainer):\n        self.scheduler.step()", "OneCycleLR(optimizer, 0.1, total_steps=900)"),
    "at the end of an epoch": HOOKED
    % (
        "on_batch_end(self, trainer):\n        if trainer.is_last:\n            self.scheduler.step()",
        "ExponentialLR(optimizer, gamma=0.9)",
    ),
}


@pytest.mark.parametrize("script", IN_HOOKS.values(), ids=IN_HOOKS)
def test_lint_reports_schedules_in_methods_for_batches(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", NOT_IN_HOOKS.values(), ids=NOT_IN_HOOKS)
def test_lint_accepts_schedules_in_other_methods(lint_is_clean, script):
    lint_is_clean(script)
