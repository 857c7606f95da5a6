"""SCH007: a schedule with a length in updates that is stepped once per epoch."""

import pytest

HEAD = """
import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(96, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
def update(a, b):
    optimizer.zero_grad()
    loss = F.mse_loss(model(a), b)
    loss.backward()
    optimizer.step()
"""

RUN_AND_LINT = {
    "after the loop over the batches": """
scheduler = OneCycleLR(optimizer, 0.05, epochs=4, steps_per_epoch=len(loader))
for _ in range(4):
    for a, b in loader:
        update(a, b)
    scheduler.step()  # <- SCH007
""",
    "in a class": """
class Trainer:
    def __init__(self, model, loader, epochs):
        self.model, self.loader, self.epochs = model, loader, epochs
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.scheduler = OneCycleLR(self.optimizer, max_lr=0.05, epochs=epochs, steps_per_epoch=len(self.loader))
    def train_epoch(self):
        for a, b in self.loader:
            self.optimizer.zero_grad()
            F.mse_loss(self.model(a), b).backward()
            self.optimizer.step()
    def fit(self):
        for _ in range(self.epochs):
            self.train_epoch()
            self.end()
    def end(self):
        self.scheduler.step()  # <- SCH007
Trainer(model, loader, 3).fit()
""",
    "with a scaler, and an evaluation after each epoch": """
def main(epochs=3):
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    held_out = DataLoader(TensorDataset(torch.randn(32, 6), torch.randn(32, 1)), batch_size=16)
    one_cycle = OneCycleLR(optimizer, max_lr=0.05, epochs=epochs, steps_per_epoch=len(loader))
    for _ in range(epochs):
        model.train()
        for i, (a, b) in enumerate(loader):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(model(a).float(), b)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        model.eval()
        with torch.no_grad():
            print(sum(F.mse_loss(model(a), b, reduction="sum").item() for a, b in held_out) / 32)
        one_cycle.step()  # <- SCH007
main()
""",
    "accumulation windows": """
scheduler = OneCycleLR(optimizer, max_lr=0.05, epochs=4, steps_per_epoch=len(loader))
for _ in range(4):
    for i, (a, b) in enumerate(loader):
        loss = F.mse_loss(model(a), b) / 2
        loss.backward()
        if i % 2 == 1:
            optimizer.step()
            optimizer.zero_grad()
    scheduler.step()  # <- SCH007
""",
}

LINT_ONLY = {
    "a cosine over all batches": """
epochs = 4
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
for _ in range(epochs):
    for a, b in loader:
        update(a, b)
    scheduler.step()  # <- SCH007
""",
    "a cosine over the batches of one epoch": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader), eta_min=0, last_epoch=-1)
for epoch in range(9):
    for a, b in loader:
        update(a, b)
    if epoch >= 2:
        scheduler.step()  # <- SCH007
""",
    "a number in between, rounded": """
total = int(math.ceil(len(loader) / 2) * 5)
def train(scheduler):
    for epoch in range(5):
        for a, b in loader:
            update(a, b)
        scheduler.step()  # <- SCH007
train(OneCycleLR(optimizer, 0.05, total_steps=total))
""",
    "as many steps as there are windows": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 3 * len(loader) // 2)
for _ in range(3):
    for i, (a, b) in enumerate(loader):
        (F.mse_loss(model(a), b) / 2).backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    scheduler.step()  # <- SCH007
""",
    "a library's scheduler with a warm-up": """
from transformers import get_linear_schedule_with_warmup
steps = len(loader) * 4
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=3, num_training_steps=steps)
for _ in range(4):
    for a, b in loader:
        update(a, b)
    scheduler.step()  # <- SCH007
""",
}

RUN_ONLY = {
    "a warm-up by hand that counts the batches of an epoch": """
for epoch in range(5):
    for i, (a, b) in enumerate(loader):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(1.0, (i + 1) / 20)  # <- SCH007
        update(a, b)
""",
    "a warm-up shorter than an epoch": """
def set_rate(i):
    rate = 0.1 * min(1.0, i / 8)
    optimizer.param_groups[0]['lr'] = rate  # <- SCH007
for epoch in range(5):
    for i, part in enumerate(torch.randperm(96).split(8)):
        set_rate(i)
        update(x[part], x[part].sum(1, keepdim=True))
""",
    "a number that was computed before": """
batches = 96 // 16
scheduler = OneCycleLR(optimizer, 0.05, None, 3, batches)
for _ in range(3):
    for a, b in loader:
        update(a, b)
    scheduler.step()  # <- SCH007
""",
}

RUN_ONLY |= {
    "as many planned steps as updates, without a loader": """
scheduler = OneCycleLR(optimizer, 0.05, total_steps=48)
for epoch in range(6):
    for part in torch.randperm(96).split(12):
        update(x[part], x[part].sum(1, keepdim=True))
    scheduler.step()  # <- SCH007
""",
    "a cosine over all updates, in a function that ends": """
def train(epochs, size):
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * (96 // size))
    for epoch in range(epochs):
        for a in x.split(size):
            update(a, a.sum(1, keepdim=True))
        scheduler.step()  # <- SCH007
train(10, 12)
""",
    "a function of all updates": """
def warm_cosine(warm, total):
    def factor(k):
        if k < warm:
            return (k + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (k - warm) / (total - warm))))
    return factor
scheduler = lr_scheduler.LambdaLR(optimizer, warm_cosine(16, 80))
def train(schedule):
    for epoch in range(10):
        for a in x.split(12):
            update(a, a.sum(1, keepdim=True))
        schedule.step()  # <- SCH007
train(scheduler)
""",
    "a function with bound arguments": """
import functools
def linear(step, *, warmup_steps, training_steps):
    return min(1.0, (step + 1) / warmup_steps, (training_steps - step) / (training_steps - warmup_steps))
rates = functools.partial(linear, warmup_steps=5, training_steps=80)
scheduler = lr_scheduler.LambdaLR(optimizer, rates)
for epoch in range(10):
    for a in x.split(12):
        update(a, a.sum(1, keepdim=True))
    scheduler.step()  # <- SCH007
""",
    "a scheduler of the program": """
class WarmUp(lr_scheduler.LRScheduler):
    def __init__(self, optimizer, warm, total):
        self.warm, self.total = warm, total
        super().__init__(optimizer)
    def get_lr(self):
        k = self.last_epoch
        factor = min((k + 1) / self.warm, (self.total - k) / (self.total - self.warm))
        return [factor * each for each in self.base_lrs]
scheduler = WarmUp(optimizer, 16, 80)
for epoch in range(10):
    for a in x.split(12):
        update(a, a.sum(1, keepdim=True))
    scheduler.step()  # <- SCH007
""",
    "milestones of epochs": """
scheduler = lr_scheduler.MultiStepLR(optimizer, milestones=[5, 8], gamma=0.1)
for epoch in range(10):
    for i in range(0, 96, 12):
        update(x[i:i + 12], x[i:i + 12].sum(1, keepdim=True))
        scheduler.step()  # <- SCH007
""",
}

CORRECT = {
    "a function of all updates, once per update": """
total = 80
scheduler = lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / total)
for epoch in range(10):
    for i in range(0, 96, 12):
        update(x[i:i + 12], x[i:i + 12].sum(1, keepdim=True))
        scheduler.step()
""",
    "a function of the epochs that knows the batches": """
epochs, batches = 10, 8
scheduler = lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k * batches / (epochs * batches + 1))
for epoch in range(epochs):
    for i in range(0, 96, 12):
        update(x[i:i + 12], x[i:i + 12].sum(1, keepdim=True))
    scheduler.step()
""",
    "milestones of updates": """
scheduler = lr_scheduler.MultiStepLR(optimizer, milestones=[40, 60], gamma=0.1)
for epoch in range(10):
    for i in range(0, 96, 12):
        update(x[i:i + 12], x[i:i + 12].sum(1, keepdim=True))
        scheduler.step()
""",
    "a warm-up of some updates": """
scheduler = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=8)
for epoch in range(10):
    for i in range(0, 96, 12):
        update(x[i:i + 12], x[i:i + 12].sum(1, keepdim=True))
        scheduler.step()
""",
    "one update per epoch": """
scheduler = lr_scheduler.MultiStepLR(optimizer, milestones=[40, 60], gamma=0.1)
for epoch in range(80):
    update(x, x.sum(1, keepdim=True))
    scheduler.step()
""",
    "a short trial of a long schedule": """
scheduler = OneCycleLR(optimizer, 0.05, total_steps=1000)
for epoch in range(6):
    for part in torch.randperm(96).split(12):
        update(x[part], x[part].sum(1, keepdim=True))
        scheduler.step()
""",
    "warm restarts": """
scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=6)
for epoch in range(6):
    for a, b in loader:
        update(a, b)
        scheduler.step()
""",
    "triangles": """
scheduler = lr_scheduler.CyclicLR(optimizer, 0.001, 0.01, step_size_up=5, step_size_down=5)
for epoch in range(8):
    for a, b in loader:
        update(a, b)
        scheduler.step()
""",
    "a cycle for each stage of the training": """
for stage in range(4):
    scheduler = OneCycleLR(optimizer, 0.05, total_steps=12)
    for epoch in range(2):
        for a, b in loader:
            update(a, b)
            scheduler.step()
""",
    "a warm-up by hand over the whole run": """
done = 0
for epoch in range(5):
    for a, b in loader:
        done += 1
        optimizer.param_groups[0]["lr"] = 0.01 * min(1.0, done / 20)
        update(a, b)
""",
    "two warm-ups, for two stages": """
for stage in range(2):
    for i in range(12):
        optimizer.param_groups[0]["lr"] = 0.01 * (i + 1) / 12
        update(x, x.sum(1, keepdim=True))
""",
    "one step per batch": """
scheduler = OneCycleLR(optimizer, 0.05, epochs=4, steps_per_epoch=len(loader))
for _ in range(4):
    for a, b in loader:
        update(a, b)
        scheduler.step()
""",
    "counted in epochs": """
scheduler = OneCycleLR(optimizer, 0.05, total_steps=4)
for _ in range(3):
    for a, b in loader:
        update(a, b)
    scheduler.step()
""",
    "one step in each epoch": """
scheduler = OneCycleLR(optimizer, 0.05, epochs=4, steps_per_epoch=1)
for _ in range(4):
    for a, b in loader:
        update(a, b)
    scheduler.step()
""",
    "planned for as many epochs as there were updates": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=18)
for _ in range(3):
    for a, b in loader:
        update(a, b)
    scheduler.step()
""",
    "as many micro-batches to a window as windows to an epoch": """
data = DataLoader(TensorDataset(x[:64], x[:64].sum(1, keepdim=True)), batch_size=16, shuffle=True)
scheduler = OneCycleLR(optimizer, 0.05, epochs=5, steps_per_epoch=len(data) // 2)
for _ in range(5):
    for i, (a, b) in enumerate(data):
        (F.mse_loss(model(a), b) / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
""",
    "as many updates to an iteration as iterations to an epoch": """
scheduler = OneCycleLR(optimizer, 0.05, epochs=3, steps_per_epoch=len(loader))
for _ in range(3):
    for a, b in loader:
        for part in range(6):
            update(a, b)
        scheduler.step()
""",
    "windows over several epochs": """
scheduler = OneCycleLR(optimizer, 0.05, total_steps=3)
for _ in range(3):
    for a, b in loader:
        (F.mse_loss(model(a), b) / 6).backward()
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
""",
    "one batch is the whole data": """
whole = DataLoader(loader.dataset, batch_size=96)
scheduler = OneCycleLR(optimizer, 0.05, epochs=5, steps_per_epoch=1)
for _ in range(5):
    for a, b in whole:
        update(a, b)
    scheduler.step()
""",
    "the fraction of an epoch": """
scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
for epoch in range(4):
    for i, (a, b) in enumerate(loader):
        update(a, b)
        scheduler.step(epoch + i / len(loader))
""",
    "another loop around it": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=8 * len(loader) // len(loader))
for _ in range(6):
    for a, b in loader:
        update(a, b)
    scheduler.step()
""",
}

LINT_IGNORES = {
    "per batch or per epoch, as the settings say": """
def train(per_batch: bool):
    scheduler = OneCycleLR(optimizer, 0.05, total_steps=4 * len(loader) if per_batch else 4)
    for _ in range(4):
        for a, b in loader:
            update(a, b)
            if per_batch:
                scheduler.step()
        if not per_batch:
            scheduler.step()
train(True)
""",
    "the length of another loader": """
chunks = DataLoader(TensorDataset(x), batch_size=48)
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=3 * len(chunks))
for _ in range(3):
    for chunk in chunks:
        for a, b in loader:
            update(a, b)
        scheduler.step()
""",
    "stepped by the caller": """
def epoch(scheduler):
    for a, b in loader:
        update(a, b)
    scheduler.step()
""",
}


@pytest.mark.parametrize("script", [*RUN_AND_LINT.values(), *RUN_ONLY.values()], ids=[*RUN_AND_LINT, *RUN_ONLY])
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "epoch" in run_reports(HEAD + script).findings[0].message


@pytest.mark.parametrize("script", [*RUN_AND_LINT.values(), *LINT_ONLY.values()], ids=[*RUN_AND_LINT, *LINT_ONLY])
def test_lint_reports_the_marked_line(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", [*CORRECT.values(), *LINT_IGNORES.values()], ids=[*CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, script: str):
    lint_is_clean(HEAD + script)


# Epochs stepped per batch -----------------------------------------------------------------------------------------

EPOCHS_STEPPED_PER_BATCH_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

EPOCHS_STEPPED_PER_BATCH = {
    "the schedule comes from a function": """
def build(net, epochs):
    optimizer = getattr(torch.optim, "SGD")(net.parameters(), lr=0.1)
    return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)

net, epochs = nn.Linear(6, 1), 4
optimizer, scheduler = build(net, epochs)
for epoch in range(epochs):
    for k in torch.randperm(96).split(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[k]), y[k]).backward()
        optimizer.step()
        scheduler.step()  # <- SCH007
""",
    "milestones in a class, from settings": """
SETTINGS = {"epochs": 20, "milestones": [12, 17], "lr": 0.1}

class Fitter:
    def __init__(self, net, settings):
        self.net, self.settings = net, settings
        self.opt = torch.optim.Adam(net.parameters(), lr=settings["lr"])
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.opt, settings["milestones"], gamma=0.1)

    def one_epoch(self, batches):
        for a, b in batches:
            self.opt.zero_grad()
            nn.functional.mse_loss(self.net(a), b).backward()
            self.opt.step()
            self.schedule.step()  # <- SCH007

    def fit(self, data):
        batches = DataLoader(data, batch_size=16, shuffle=True)
        for number in range(self.settings["epochs"]):
            self.one_epoch(batches)

Fitter(nn.Linear(6, 1), SETTINGS).fit(data)
""",
    "a step size below the number of epochs": """
net, n_epochs = nn.Linear(6, 1), 30
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
decay = torch.optim.lr_scheduler.StepLR(sgd, step_size=10)
for e in range(1, n_epochs + 1):
    for i, (a, b) in enumerate(DataLoader(data, batch_size=16, shuffle=True)):
        sgd.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        sgd.step()
        decay.step()  # <- SCH007
""",
    "parts of an unknown number of epochs": """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=30)
args = parser.parse_args([])
net, loader = nn.Linear(6, 1), DataLoader(data, batch_size=16, shuffle=True)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.MultiStepLR(sgd, [args.epochs // 2, int(args.epochs * 0.75)])
for epoch in range(args.epochs):
    for a, b in loader:
        sgd.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        sgd.step()
        scheduler.step()  # <- SCH007
""",
    "an item of unknown settings": """
import json

def train(config, net):
    loader = DataLoader(data, batch_size=config["batch"], shuffle=True)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=config["epochs"])
    for epoch in range(config["epochs"]):
        for a, b in loader:
            sgd.zero_grad()
            nn.functional.mse_loss(net(a), b).backward()
            sgd.step()
            scheduler.step()  # <- SCH007

train(json.loads('{"epochs": 4, "batch": 16}'), nn.Linear(6, 1))
""",
    "without the epochs of a warm-up": """
net, epochs, warm_up = nn.Linear(6, 1), 40, 5
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, epochs - warm_up)
for epoch in range(epochs):
    for start in range(0, 96, 16):
        sgd.zero_grad()
        nn.functional.mse_loss(net(x[start : start + 16]), y[start : start + 16]).backward()
        sgd.step()
        cosine.step()  # <- SCH007
""",
}

EPOCHS_STEPPED_PER_BATCH_FINE = {
    "a curve is drawn": """
net, epochs, rates = nn.Linear(6, 1), 4, []
nn.functional.mse_loss(net(x), y).backward()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
for i in range(epochs):
    for j in range(32):
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
""",
    "milestones in updates": """
net, loader = nn.Linear(6, 1), DataLoader(data, batch_size=16)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.MultiStepLR(sgd, [60, 90])
for epoch in range(20):
    for a, b in loader:
        sgd.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        sgd.step()
        scheduler.step()
""",
    "milestones in epochs, multiplied by the batches": """
net, loader, epochs = nn.Linear(6, 1), DataLoader(data, batch_size=16), 20
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.MultiStepLR(sgd, [each * len(loader) for each in (12, 17)])
halves = torch.optim.lr_scheduler.StepLR(sgd, int(epochs * len(loader) / 2))
for epoch in range(epochs):
    for a, b in loader:
        sgd.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        sgd.step()
        scheduler.step()
        halves.step()
""",
    "a small decay every few batches": """
net, loader = nn.Linear(6, 1), DataLoader(data, batch_size=16)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(sgd, step_size=10, gamma=0.98)
for epoch in range(20):
    for a, b in loader:
        sgd.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        sgd.step()
        scheduler.step()
""",
    "stepped once per epoch": """
net, loader = nn.Linear(6, 1), DataLoader(data, batch_size=16)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.MultiStepLR(sgd, [12, 17])
for epoch in range(20):
    for a, b in loader:
        sgd.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        sgd.step()
    scheduler.step()
""",
    "one batch of all samples": """
net, loader = nn.Linear(6, 1), DataLoader(data, batch_size=len(data))
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.MultiStepLR(sgd, [12, 17])
for epoch in range(20):
    for a, b in loader:
        sgd.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        sgd.step()
        scheduler.step()
""",
    "the number of updates": """
net, epochs = nn.Linear(6, 1), 4
loader = DataLoader(data, batch_size=16)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
for epoch in range(epochs):
    for a, b in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(a), b).backward()
        optimizer.step()
        scheduler.step()
""",
    "restarts on purpose": """
net, epochs = nn.Linear(6, 1), 4
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, epochs)
for epoch in range(epochs):
    for k in torch.randperm(96).split(16):
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x[k]), y[k]).backward()
        optimizer.step()
        scheduler.step()
""",
}


@pytest.mark.parametrize("name", EPOCHS_STEPPED_PER_BATCH)
def test_lint_reports_epochs_stepped_per_batch(lint_reports, name):
    lint_reports(EPOCHS_STEPPED_PER_BATCH_HEAD + EPOCHS_STEPPED_PER_BATCH[name])


@pytest.mark.parametrize("name", EPOCHS_STEPPED_PER_BATCH_FINE)
def test_lint_accepts_epochs_stepped_per_batch(lint_is_clean, name):
    lint_is_clean(EPOCHS_STEPPED_PER_BATCH_HEAD + EPOCHS_STEPPED_PER_BATCH_FINE[name])


NOAM_HEAD = (
    HEAD
    + """
class Noam:
    def __init__(self, width, warmup):
        self.width, self.warmup = width, warmup
    def __call__(self, step):
        step = max(step, 1)
        return self.width ** -0.5 * min(step ** -0.5, step * self.warmup ** -1.5)
"""
)
NOAM = {
    "a class": """
scheduler = lr_scheduler.LambdaLR(optimizer, Noam(32, 60))
for epoch in range(6):
    for a, b in loader:
        update(a, b)
    scheduler.step()  # <- SCH007
""",
    "a lambda, in a trainer": """
class Trainer:
    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.Adam(model.parameters(), lr=1.0)
        self.scheduler = lr_scheduler.LambdaLR(
            self.optimizer, lr_lambda=lambda n: 512 ** (-0.5) * min((n + 1) ** -0.5, (n + 1) * 4000 ** -1.5)
        )
    def epoch(self):
        for a, b in loader:
            self.optimizer.zero_grad()
            F.mse_loss(self.model(a), b).backward()
            self.optimizer.step()
    def fit(self):
        for _ in range(3):
            self.epoch()
            self.scheduler.step()  # <- SCH007
Trainer(model).fit()
""",
}
NOAM_FINE = {
    "stepped per update": """
scheduler = lr_scheduler.LambdaLR(optimizer, Noam(32, 60))
for epoch in range(6):
    for a, b in loader:
        update(a, b)
        scheduler.step()
""",
    "one update per iteration": """
scheduler = lr_scheduler.LambdaLR(optimizer, Noam(32, 60))
for step in range(600):
    a, b = x[:16], x[:16].sum(1, keepdim=True)
    update(a, b)
    scheduler.step()
""",
    "another schedule, in epochs": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 0.95 ** step)
for epoch in range(6):
    for a, b in loader:
        update(a, b)
    scheduler.step()
""",
}


@pytest.mark.parametrize("name", NOAM)
def test_lint_reports_a_noam_schedule_stepped_per_epoch(lint_reports, name):
    lint_reports(NOAM_HEAD + NOAM[name])


@pytest.mark.parametrize("name", NOAM_FINE)
def test_lint_accepts_other_schedules(lint_is_clean, name):
    lint_is_clean(NOAM_HEAD + NOAM_FINE[name])


WARM_UP_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
warmup = 6
def update(inputs, targets):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    return loss
"""
WARM_UPS = {
    "a condition": """
for epoch in range(4):
    for step, (a, b) in enumerate(loader):
        if step < warmup:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (step + 1) / warmup  # <- SCH007
        update(a, b).backward()
        optimizer.step()
""",
    "min, in a function": """
def train_epoch():
    for i, (a, b) in enumerate(loader):
        rate = 0.01 * min(1.0, (i + 1) / warmup)
        optimizer.param_groups[0]["lr"] = rate  # <- SCH007
        update(a, b).backward()
        optimizer.step()
for epoch in range(4):
    train_epoch()
""",
    "a function that sets the rate": """
def adjust(opt, it):
    if it < warmup:
        rate = 0.01 * it / warmup
        for group in opt.param_groups:
            group["lr"] = rate  # <- SCH007
for epoch in range(4):
    for i, (a, b) in enumerate(loader):
        adjust(optimizer, i)
        update(a, b).backward()
        optimizer.step()
""",
}
WARM_UPS_FINE = {
    "in the first epoch": """
for epoch in range(4):
    for step, (a, b) in enumerate(loader):
        if epoch == 0 and step < warmup:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (step + 1) / warmup
        update(a, b).backward()
        optimizer.step()
""",
    "the number of all updates": """
for epoch in range(4):
    for step, (a, b) in enumerate(loader):
        done = epoch * len(loader) + step
        if done < warmup:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * (done + 1) / warmup
        update(a, b).backward()
        optimizer.step()
""",
    "one epoch": """
for step, (a, b) in enumerate(loader):
    if step < warmup:
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (step + 1) / warmup
    update(a, b).backward()
    optimizer.step()
""",
    "a counter that continues": """
done = 0
for epoch in range(4):
    for step, (a, b) in enumerate(loader):
        done += 1
        if done < warmup:
            for group in optimizer.param_groups:
                group["lr"] = 0.01 * done / warmup
        update(a, b).backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("script", WARM_UPS.values(), ids=WARM_UPS)
def test_lint_reports_a_warm_up_in_every_epoch(lint_reports, script):
    lint_reports(WARM_UP_HEAD + script)


@pytest.mark.parametrize("script", WARM_UPS_FINE.values(), ids=WARM_UPS_FINE)
def test_lint_accepts_a_single_warm_up(lint_is_clean, script):
    lint_is_clean(WARM_UP_HEAD + script, "SCH007")


TOTALS = {
    "a LambdaLR over total_steps": """
total_steps = 4 * 10
epochs = 4
total_steps = epochs * len(loader)
def factor(step):
    return max(0.0, 1 - step / total_steps)
scheduler = lr_scheduler.LambdaLR(optimizer, factor)
for _ in range(epochs):
    for a, b in loader:
        update(a, b)
    scheduler.step()  # <- SCH007
""",
    "a property of a configuration": """
class Config:
    epochs, rows, batch_size = 4, 96, 16
    @property
    def max_steps(self):
        return self.epochs * (self.rows // self.batch_size)
config = Config()
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / config.max_steps)))
for _ in range(config.epochs):
    for rows in torch.randperm(96).split(16):
        update(x[rows], x[rows].sum(1, keepdim=True))
    scheduler.step()  # <- SCH007
""",
    "batches by hand": """
EPOCHS, BATCH = 4, 16
steps_per_epoch = 96 // BATCH
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * steps_per_epoch)
for epoch in range(EPOCHS):
    for start in range(0, 96, BATCH):
        rows = slice(start, start + BATCH)
        update(x[rows], x[rows].sum(1, keepdim=True))
    scheduler.step()  # <- SCH007
""",
    "a class with the settings as attributes": """
class Schedule:
    def __init__(self, warmup, total_steps):
        self.warmup, self.total_steps = warmup, total_steps
    def __call__(self, step):
        return min((step + 1) / self.warmup, (self.total_steps - step) / self.total_steps)
num_epochs = 4
scheduler = lr_scheduler.LambdaLR(optimizer, Schedule(warmup=4, total_steps=num_epochs * len(loader)))
for _ in range(num_epochs):
    for a, b in loader:
        update(a, b)
    scheduler.step()  # <- SCH007
""",
}

TOTALS |= {
    "a closure in a function that makes both": """
def rows_of(size):
    order = torch.randperm(96)
    for k in range(96 // size):
        yield order[k * size : (k + 1) * size]
def make(s):
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    total = s["epochs"] * (96 // s["batch"])
    warm = max(1, int(0.1 * total))
    def factor(i):
        if i < warm:
            return (i + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (i - warm) / max(1, total - warm)))
    return opt, lr_scheduler.LambdaLR(opt, factor)
def main(s):
    opt, sched = make(s)
    for epoch in range(s["epochs"]):
        for rows in rows_of(s["batch"]):
            opt.zero_grad()
            F.mse_loss(model(x[rows]), x[rows].sum(1, keepdim=True)).backward()
            opt.step()
        sched.step()  # <- SCH007
main({"epochs": 10, "batch": 16})
""",
    "a property of a data class": """
from dataclasses import dataclass
@dataclass
class Plan:
    epochs: int = 10
    rows: int = 96
    batch: int = 16
    @property
    def per_pass(self):
        return self.rows // self.batch
def decay(plan):
    horizon = plan.epochs * plan.per_pass
    return lambda k: math.cos(math.pi / 2 * k / horizon)
plan = Plan()
schedule = lr_scheduler.LambdaLR(optimizer, lr_lambda=decay(plan))
for _ in range(plan.epochs):
    for rows in torch.randperm(plan.rows).split(plan.batch):
        update(x[rows], x[rows].sum(1, keepdim=True))
    schedule.step()  # <- SCH007
""",
    "an argument of another function, under other names": """
def cosine(opt, horizon):
    return lr_scheduler.CosineAnnealingLR(opt, horizon)
rounds = 12
n_batches = len(loader)
schedule = cosine(optimizer, rounds * n_batches)
for _ in range(rounds):
    for rows in torch.randperm(96).split(16):
        update(x[rows], x[rows].sum(1, keepdim=True))
    schedule.step()  # <- SCH007
""",
    "a list of factors": """
EPOCHS, BATCH = 8, 16
length = EPOCHS * 96 // BATCH
factors = [1 - k / length for k in range(length + 1)]
schedule = lr_scheduler.LambdaLR(optimizer, lambda k: factors[min(k, length)])
for epoch in range(EPOCHS):
    for start in range(0, 96, BATCH):
        rows = slice(start, start + BATCH)
        update(x[rows], x[rows].sum(1, keepdim=True))
    schedule.step()  # <- SCH007
""",
    "a trainer": """
class Trainer:
    def __init__(self, model, loader, epochs):
        self.model, self.loader, self.epochs = model, loader, epochs
        self.opt = torch.optim.AdamW(model.parameters())
        self.horizon = len(loader) * epochs
        self.sched = lr_scheduler.LambdaLR(self.opt, self.factor)
    def factor(self, k):
        return max(0.0, 1 - k / self.horizon)
    def one_epoch(self):
        for a, b in self.loader:
            self.opt.zero_grad()
            F.mse_loss(self.model(a), b).backward()
            self.opt.step()
    def fit(self):
        for _ in range(self.epochs):
            self.one_epoch()
            self.sched.step()  # <- SCH007
Trainer(model, loader, 10).fit()
""",
    "partial": """
import functools
def ramp(k, warm, total):
    return min((k + 1) / warm, max(0.0, (total - k) / total))
num_epochs, size = 10, 16
total = num_epochs * math.ceil(96 / size)
schedule = lr_scheduler.LambdaLR(optimizer, functools.partial(ramp, warm=5, total=total))
for _ in range(num_epochs):
    for rows in torch.randperm(96).split(size):
        update(x[rows], x[rows].sum(1, keepdim=True))
    schedule.step()  # <- SCH007
""",
}

TOTALS_FINE = {
    "stepped per batch": """
epochs = 4
total_steps = epochs * len(loader)
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total_steps))
for _ in range(epochs):
    for a, b in loader:
        update(a, b)
        scheduler.step()
""",
    "the function converts epochs into steps": """
epochs = 4
total_steps = epochs * len(loader)
def factor(epoch):
    return max(0.0, 1 - epoch * len(loader) / total_steps)
scheduler = lr_scheduler.LambdaLR(optimizer, factor)
for _ in range(epochs):
    for a, b in loader:
        update(a, b)
    scheduler.step()
""",
    "a name that counts epochs": """
epochs = 4
total_steps = epochs
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: max(0.1, 1 - step / total_steps))
for _ in range(epochs):
    for a, b in loader:
        update(a, b)
    scheduler.step()
""",
    "a length in epochs beside a number of updates": """
epochs = 4
total_steps = epochs * len(loader)
print(total_steps)
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
for _ in range(epochs):
    for a, b in loader:
        update(a, b)
    scheduler.step()
""",
    "one update per epoch, from accumulated gradients": """
epochs = 40
total_steps = epochs * 1
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total_steps))
for _ in range(epochs):
    optimizer.zero_grad()
    for a, b in loader:
        (F.mse_loss(model(a), b) / len(loader)).backward()
    optimizer.step()
    scheduler.step()
""",
    "rollouts, with several passes over each": """
iterations, passes = 40, 3
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / iterations)
for _ in range(iterations):
    for _ in range(passes):
        for a, b in loader:
            update(a, b)
    scheduler.step()
""",
}

TOTALS_FINE |= {
    "the total is converted into epochs": """
epochs, size = 10, 16
per_epoch = 96 // size
total = epochs * per_epoch
warm = int(0.1 * total) / per_epoch
def factor(e):
    return (e + 1) / warm if e < warm else 0.5 * (1 + math.cos(math.pi * e / epochs))
schedule = lr_scheduler.LambdaLR(optimizer, factor)
for _ in range(epochs):
    for rows in torch.randperm(96).split(size):
        update(x[rows], x[rows].sum(1, keepdim=True))
    schedule.step()
""",
    "the epoch is converted into updates": """
epochs, size = 10, 16
n = 96 // size
total = epochs * n
schedule = lr_scheduler.LambdaLR(optimizer, lambda e: 1 - e * n / total)
for _ in range(epochs):
    for rows in torch.randperm(96).split(size):
        update(x[rows], x[rows].sum(1, keepdim=True))
    schedule.step()
""",
    "a function with a total of its own": """
def report(epochs):
    total = epochs * len(loader)
    print(total)
def make(epochs):
    total = epochs
    return lr_scheduler.LambdaLR(optimizer, lambda e: 1 - e / total)
report(10)
schedule = make(10)
for epoch in range(10):
    for rows in torch.randperm(96).split(16):
        update(x[rows], x[rows].sum(1, keepdim=True))
    schedule.step()
""",
    "one of two lengths, as the unit says": """
epochs = 10
total = epochs * len(loader)
def make(opt, length):
    return lr_scheduler.CosineAnnealingLR(opt, length)
schedule, slow = make(optimizer, total), 0
for epoch in range(epochs):
    for a, b in loader:
        update(a, b)
        schedule.step()
""",
    "stepped as often as there are batches": """
epochs = 10
n = len(loader)
total = epochs * n
schedule = lr_scheduler.LambdaLR(optimizer, lambda k: 1 - k / total)
for epoch in range(epochs):
    for a, b in loader:
        update(a, b)
    for _ in range(n):
        schedule.step()
""",
    "a property with the number of epochs": """
class Plan:
    epochs, batch = 10, 16
    @property
    def horizon(self):
        return self.epochs + 1
plan = Plan()
schedule = lr_scheduler.LambdaLR(optimizer, lambda e: math.cos(math.pi * e / plan.horizon))
for _ in range(plan.epochs):
    for rows in torch.randperm(96).split(plan.batch):
        update(x[rows], x[rows].sum(1, keepdim=True))
    schedule.step()
""",
}


@pytest.mark.parametrize("name", TOTALS)
def test_lint_reports_totals_stepped_per_epoch(lint_reports, name):
    lint_reports(HEAD + TOTALS[name])


@pytest.mark.parametrize("name", TOTALS_FINE)
def test_lint_accepts_lengths_in_the_unit_of_their_steps(lint_is_clean, name):
    lint_is_clean(HEAD + TOTALS_FINE[name])


# Schedules of the program's own -----------------------------------------------------------------------------------

OWN_HEAD = """
import math
from dataclasses import dataclass
from functools import partial
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)

class WarmupCosine:
    def __init__(self, opt, warmup, total, lowest=0.0):
        self.opt, self.warmup, self.total, self.lowest = opt, warmup, total, lowest
        self.base = [g["lr"] for g in opt.param_groups]
        self.t = 0
    def factor(self):
        if self.t < self.warmup:
            return (self.t + 1) / self.warmup
        done = min(1.0, (self.t - self.warmup) / max(1, self.total - self.warmup))
        return 0.5 * (1 + math.cos(math.pi * done))
    def step(self):
        self.t += 1
        for g, b in zip(self.opt.param_groups, self.base):
            g["lr"] = self.lowest + (b - self.lowest) * self.factor()

def shape(step, warmup, total):
    if step < warmup:
        return step / warmup
    progress = float(step - warmup) / float(max(1, total - warmup))
    return max(0.0, 1 - progress)

def batch(net, opt, k):
    opt.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    opt.step()
"""
OWN_PER_BATCH = {
    "a class, in a trainer with settings": """
@dataclass
class Config:
    epochs: int = 30
    warmup: int = 3
class Trainer:
    def __init__(self, net, cfg):
        self.net, self.cfg = net, cfg
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.sched = WarmupCosine(self.opt, cfg.warmup, cfg.epochs)
    def train_batch(self, k):
        batch(self.net, self.opt, k)
        self.sched.step()  # <- SCH007
    def fit(self):
        for epoch in range(1, self.cfg.epochs + 1):
            for k in torch.randperm(96).split(16):
                self.train_batch(k)
Trainer(nn.Linear(6, 1), Config()).fit()
""",
    "a lambda that calls a function": """
def main(epochs=20):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    sched = LambdaLR(opt, lambda e: shape(e, 2, epochs))
    for epoch in range(epochs):
        for k in torch.randperm(96).split(16):
            batch(net, opt, k)
            sched.step()  # <- SCH007
main()
""",
    "bound arguments": """
EPOCHS = 20
net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = LambdaLR(opt, partial(shape, warmup=2, total=EPOCHS))
for epoch in range(EPOCHS):
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
        sched.step()  # <- SCH007
""",
    "a closure": """
def decay(opt, num_epochs):
    def factor(epoch):
        return (1 - epoch / num_epochs) ** 0.9
    return LambdaLR(opt, factor)
net, num_epochs = nn.Linear(6, 1), 20
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = decay(opt, num_epochs)
for epoch in range(num_epochs):
    for start in range(0, 96, 16):
        batch(net, opt, slice(start, start + 16))
        sched.step()  # <- SCH007
""",
    "a scheduler class of PyTorch": """
class Poly(LRScheduler):
    def __init__(self, optimizer, last):
        self.last = last
        super().__init__(optimizer)
    def get_lr(self):
        return [b * (1 - self.last_epoch / self.last) for b in self.base_lrs]
net, epochs = nn.Linear(6, 1), 20
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = Poly(opt, epochs)
for epoch in range(epochs):
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
        sched.step()  # <- SCH007
""",
}
OWN_PER_BATCH |= {
    "numbers": """
net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = WarmupCosine(opt, 3, 30)
for epoch in range(30):
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
        sched.step()  # <- SCH007
""",
}
OWN_PER_BATCH_FINE = {
    "a warm-up of some updates": """
class WarmUp:
    def __init__(self, opt, steps):
        self.opt, self.steps, self.t, self.base = opt, steps, 0, 0.1
    def step(self):
        self.t += 1
        for group in self.opt.param_groups:
            group["lr"] = self.base * min(1.0, self.t / self.steps)
net = nn.Linear(6, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = WarmUp(opt, 100)
for epoch in range(100):
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
        sched.step()
""",
    "once per epoch": """
net, epochs = nn.Linear(6, 1), 20
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = WarmupCosine(opt, 2, epochs)
for epoch in range(epochs):
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
    sched.step()
""",
    "the number of updates": """
net, epochs = nn.Linear(6, 1), 20
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = WarmupCosine(opt, 12, epochs * 6)
for epoch in range(epochs):
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
        sched.step()
""",
    "multiplied in the class": """
class Poly:
    def __init__(self, opt, epochs, batches):
        self.opt, self.epochs, self.t = opt, epochs * batches, 0
        self.base = opt.param_groups[0]["lr"]
    def step(self):
        self.t += 1
        self.opt.param_groups[0]["lr"] = self.base * (1 - self.t / self.epochs)
net, epochs = nn.Linear(6, 1), 20
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = Poly(opt, epochs, 6)
for epoch in range(epochs):
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
        sched.step()
""",
    "the counter is converted": """
class Poly:
    def __init__(self, opt, epochs, batches):
        self.opt, self.epochs, self.batches, self.t = opt, epochs, batches, 0
        self.base = opt.param_groups[0]["lr"]
    def step(self):
        self.t += 1
        self.opt.param_groups[0]["lr"] = self.base * (1 - self.t / self.batches / self.epochs)
net, epochs = nn.Linear(6, 1), 20
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = Poly(opt, epochs, 6)
for epoch in range(epochs):
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
        sched.step()
""",
    "the step is converted first": """
net, epochs = nn.Linear(6, 1), 20
def factor(step):
    epoch = step / 6
    return 1 - epoch / epochs
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = LambdaLR(opt, factor)
for epoch in range(epochs):
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
        sched.step()
""",
    "parts of an epoch": """
class Poly:
    def __init__(self, opt, epochs, batches):
        self.opt, self.epochs, self.batches, self.t = opt, epochs, batches, 0.0
        self.base = opt.param_groups[0]["lr"]
    def step(self):
        self.t += 1 / self.batches
        self.opt.param_groups[0]["lr"] = self.base * (1 - self.t / self.epochs)
net, epochs = nn.Linear(6, 1), 20
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = Poly(opt, epochs, 6)
for epoch in range(epochs):
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
        sched.step()
""",
    "a warm-up of as many updates as there are epochs": """
net, epochs, warmup = nn.Linear(6, 1), 5, 5
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = WarmupCosine(opt, warmup, 5 * 6)
for epoch in range(epochs):
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
        sched.step()
""",
    "one cycle in each epoch": """
net, epochs = nn.Linear(6, 1), 20
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(epochs):
    sched = WarmupCosine(opt, 1, 6)
    for k in torch.randperm(96).split(16):
        batch(net, opt, k)
        sched.step()
""",
}
OWN_PER_EPOCH = {
    "a class over all batches": """
net, epochs = nn.Linear(6, 1), 20
batches = torch.arange(96).split(16)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = WarmupCosine(opt, 12, epochs * len(batches))
for epoch in range(epochs):
    for k in batches:
        batch(net, opt, k)
    sched.step()  # <- SCH007
""",
}


@pytest.mark.parametrize("script", [*OWN_PER_BATCH.values(), *OWN_PER_EPOCH.values()])
def test_lint_reports_own_schedules_in_other_units(lint_reports, script):
    lint_reports(OWN_HEAD + script)


@pytest.mark.parametrize("name", OWN_PER_BATCH_FINE)
def test_lint_accepts_own_schedules(lint_is_clean, name):
    lint_is_clean(OWN_HEAD + OWN_PER_BATCH_FINE[name], "SCH007")


SOON_HEAD = (
    EPOCHS_STEPPED_PER_BATCH_HEAD
    + """
loader = DataLoader(data, batch_size=16)

def fit(net, epochs, schedule):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.SCHEDULE
    for epoch in range(epochs):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(net(a), b).backward()
            optimizer.step()
            scheduler.step()MARK
"""
)
SOON = {
    "steps": "StepLR(optimizer, step_size=3, gamma=0.1)",
    "steps by default": "StepLR(optimizer, 7)",
    "milestones": "MultiStepLR(optimizer, milestones=[4, 8])",
}
LATER = {
    "many batches": "StepLR(optimizer, step_size=3000, gamma=0.1)",
    "a slow decay": "StepLR(optimizer, step_size=3, gamma=0.99)",
    "a late milestone": "MultiStepLR(optimizer, milestones=[8, 4000])",
    "a variable": "StepLR(optimizer, step_size=len(loader) * 3)",
}


@pytest.mark.parametrize("schedule", SOON.values(), ids=SOON)
def test_lint_reports_drops_in_the_first_batches(lint_reports, schedule):
    lint_reports(SOON_HEAD.replace("SCHEDULE", schedule).replace("MARK", "  # <- SCH007"))


@pytest.mark.parametrize("schedule", LATER.values(), ids=LATER)
def test_lint_accepts_later_drops(lint_is_clean, schedule):
    lint_is_clean(SOON_HEAD.replace("SCHEDULE", schedule).replace("MARK", ""), "SCH007")


OPTIONS = """
import argparse
import torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--lr-step", type=int, default={size})
parser.add_argument("--decay", type=float, default={factor})
args = parser.parse_args()
class Trainer:
    def __init__(self, net, args):
        self.net, self.epochs = net, args.epochs
        self.opt = torch.optim.SGD(net.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.{schedule}
    def batches(self, x, y):
        for rows in torch.randperm(len(x)).split(16):
            yield x[rows], y[rows]
    def train_epoch(self, x, y):
        for a, b in self.batches(x, y):
            self.opt.zero_grad()
            nn.functional.cross_entropy(self.net(a), b).backward()
            self.opt.step()
            {in_batch}
    def train(self, x, y):
        for epoch in range(1, self.epochs + 1):
            self.train_epoch(x, y)
            {in_epoch}
Trainer(nn.Linear(4, 3), args).train(torch.randn(900, 4), torch.randint(3, (900,)))
"""
STEP = "StepLR(self.opt, step_size=args.lr_step, gamma=args.decay)"
MILESTONES = "MultiStepLR(self.opt, [args.lr_step], gamma=args.decay)"


def options(schedule: str, size: int, factor: float = 0.3, *, per_epoch: bool = False) -> str:
    lines = ("pass", "self.schedule.step()") if per_epoch else ("self.schedule.step()  # <- SCH007", "pass")
    return OPTIONS.format(schedule=schedule, size=size, factor=factor, in_batch=lines[0], in_epoch=lines[1])


@pytest.mark.parametrize("schedule", [STEP, "StepLR(self.opt, args.lr_step, args.decay)", MILESTONES])
def test_lint_reports_default_step_sizes_of_options_in_epochs(lint_reports, schedule):
    lint_reports(options(schedule, 5))


@pytest.mark.parametrize(
    "script",
    [options(STEP, 5, per_epoch=True), options(STEP, 400), options(STEP, 5, 0.99), options(MILESTONES, 300)],
    ids=["per epoch", "in batches", "a slow decay", "a late milestone"],
)
def test_lint_accepts_other_step_sizes_of_options(lint_is_clean, script):
    lint_is_clean(script.replace("  # <- SCH007", ""), "SCH007")


SINGLE_LOOP = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default={steps})
args = parser.parse_args()
scheduler = lr_scheduler.{schedule}
batches = iter(loader)
for step in range(1, args.steps + 1):
    try:
        a, b = next(batches)
    except StopIteration:
        batches = iter(loader)
        a, b = next(batches)
    update(a, b)
    {advance}{mark}
"""
VANISHING = ("StepLR(optimizer, step_size=10, gamma=0.5)", "StepLR(optimizer, 30)", "ExponentialLR(optimizer, 0.95)")
LASTING = ("StepLR(optimizer, 400, gamma=0.5)", "ExponentialLR(optimizer, gamma=0.9995)", "StepLR(optimizer, 500)")


@pytest.mark.parametrize("schedule", VANISHING)
def test_lint_reports_rates_that_vanish_in_a_single_loop(lint_reports, schedule):
    mark = "  # <- SCH007"
    lint_reports(HEAD + SINGLE_LOOP.format(schedule=schedule, steps=2000, advance="scheduler.step()", mark=mark))


@pytest.mark.parametrize("schedule", LASTING)
def test_lint_accepts_rates_that_last(lint_is_clean, schedule):
    script = SINGLE_LOOP.format(schedule=schedule, steps=2000, advance="scheduler.step()", mark="")
    lint_is_clean(HEAD + script, "SCH007")


@pytest.mark.parametrize("schedule", VANISHING)
def test_lint_accepts_a_step_after_each_epoch_of_a_single_loop(lint_is_clean, schedule):
    advance = "if step % len(loader) == 0: scheduler.step()"
    lint_is_clean(HEAD + SINGLE_LOOP.format(schedule=schedule, steps=2000, advance=advance, mark=""), "SCH007")
    lint_is_clean(HEAD + SINGLE_LOOP.format(schedule=schedule, steps=50, advance="scheduler.step()", mark=""), "SCH007")
