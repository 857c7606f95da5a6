"""SCH001: a scheduler that is stepped before the optimizer."""

from __future__ import annotations

import pytest

from trueloop.failures.schedule.stepped_before_optimizer import FAILURE, RULE
from trueloop.lint.check_file import ActiveRule
from trueloop.lint.fix import fix_text

DATA = """
import warnings
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
warnings.filterwarnings("ignore")
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
    "top_of_the_epoch": """
scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
for epoch in range(3):
    scheduler.step()  # <- SCH001
    for _ in range(4):
        update()
""",
    "between_backward_and_step": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
for _ in range(6):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    scheduler.step()  # <- SCH001
    optimizer.step()
""",
    "class": """
class Trainer:
    def __init__(self):
        self.schedule = lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9 ** epoch)
    def fit(self, epochs):
        for epoch in range(epochs):
            self.before_epoch()
            for _ in range(12):
                update()
    def before_epoch(self):
        self.schedule.step()  # <- SCH001
Trainer().fit(4)
""",
    "two_optimizers": """
other = nn.Linear(6, 1)
second = torch.optim.Adam(other.parameters(), lr=0.01)
good = lr_scheduler.ExponentialLR(optimizer, 0.9)
late = lr_scheduler.ExponentialLR(second, 0.9)
for _ in range(5):
    update()
    good.step()
    late.step()  # <- SCH001
    second.zero_grad()
    F.mse_loss(other(x), y).backward()
    second.step()
""",
    "long_epochs": """
scheduler = lr_scheduler.MultiStepLR(optimizer, [2, 3])
def batches():
    yield from range(40)
for epoch in range(3):
    scheduler.step()  # <- SCH001
    for _ in batches():
        update()
""",
}
CORRECT = {
    "after_the_epoch": """
scheduler = lr_scheduler.StepLR(optimizer, 1)
for epoch in range(3):
    for _ in range(4):
        update()
    scheduler.step()
""",
    "caught_up_after_a_restart": """
scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
for _ in range(3):
    scheduler.step()
for epoch in range(3, 6):
    for _ in range(4):
        update()
    scheduler.step()
""",
    "caught_up_by_one": """
scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
def advance():
    scheduler.step()
scheduler.step()
for epoch in range(1, 4):
    update()
    advance()
""",
    "resumed": """
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 20)
for _ in range(3):
    update()
    scheduler.step()
states = optimizer.state_dict(), scheduler.state_dict()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 20)
optimizer.load_state_dict(states[0])
scheduler.load_state_dict(states[1])
for _ in range(4):
    update()
    scheduler.step()
""",
    "skipped_by_a_scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=2)
scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
for i in range(5):
    optimizer.zero_grad()
    scaler.scale(F.mse_loss(model(x), y)).backward()
    if i == 0:
        model.weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
""",
    "from_rate_zero": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 10))
for _ in range(6):
    scheduler.step()
    update()
""",
    "plateau_before_training": """
scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
for _ in range(4):
    with torch.no_grad():
        scheduler.step(F.mse_loss(model(x), y).item())
    update()
""",
    "epoch_given": """
scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4)
for epoch in range(4):
    scheduler.step(epoch)
    update()
""",
    "in_micro_batches": """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: 0.99 ** step)
for i in range(12):
    (F.mse_loss(model(x), y) / 2).backward()
    scheduler.step()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "generator_every_few": """
other = nn.Linear(6, 1)
second = torch.optim.Adam(other.parameters(), lr=0.01)
schedules = [lr_scheduler.ExponentialLR(o, 0.9) for o in (optimizer, second)]
for i in range(10):
    update()
    if i % 5 == 4:
        second.zero_grad()
        F.mse_loss(other(x), y).backward()
        second.step()
    for scheduler in schedules:
        scheduler.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_marked_line(run_reports, script: str):
    assert run_reports(DATA + script).findings[0].first_update == 0


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(DATA + script)


# Lint ------------------------------------------------------------------------------------------------------------

LINT_MISSES = {"class"}
"""A LambdaLR may start at rate 0."""

LINT_FINDS = {
    "phases of an epoch, as the tutorial once had it": """
import torchvision
def train_model(model, criterion, optimizer, scheduler, num_epochs=25):
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            if phase == "train":
                scheduler.step()  # <- SCH001
                model.train()
            else:
                model.eval()
            for inputs, labels in dataloaders[phase]:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    loss = criterion(model(inputs), labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
    return model
model_ft = torchvision.models.resnet18()
optimizer_ft = torch.optim.SGD(model_ft.parameters(), lr=0.001, momentum=0.9)
step_lr = lr_scheduler.StepLR(optimizer_ft, step_size=7, gamma=0.1)
train_model(model_ft, nn.CrossEntropyLoss(), optimizer_ft, step_lr)
""",
    "in a class, with AMP and a schedule that may be none": """
class Fit:
    def __init__(self, args, net: nn.Module):
        self.net = net
        self.opt = torch.optim.AdamW(net.parameters(), lr=args.lr)
        self.scaler = torch.amp.GradScaler("cuda")
        self.sched = lr_scheduler.CosineAnnealingLR(self.opt, args.epochs) if args.cosine else None

    def run(self, loader):
        for epoch in range(10):
            self.net.train()
            if self.sched is not None:
                self.sched.step()  # <- SCH001
            for inputs, targets in loader:
                self.opt.zero_grad(set_to_none=True)
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = F.cross_entropy(self.net(inputs), targets)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.opt)
                self.scaler.update()
""",
    "accumulated within the epoch": """
scheduler = lr_scheduler.MultiStepLR(optimizer, milestones=[30, 60])
for epoch in range(90):
    scheduler.step()  # <- SCH001
    for i, (inputs, targets) in enumerate(loader):
        (F.mse_loss(model(inputs), targets) / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
""",
}

LINT_IGNORES = {
    "not in the first epoch": """
scheduler = lr_scheduler.StepLR(optimizer, 1)
for epoch in range(3):
    if epoch > 0:
        scheduler.step()
    for _ in range(4):
        update()
""",
    "at the end of an epoch within an endless loop": """
scheduler = lr_scheduler.StepLR(optimizer, 1)
batches = iter(loader)
while True:
    try:
        inputs, targets = next(batches)
    except StopIteration:
        scheduler.step()
        batches = iter(loader)
        continue
    update()
""",
    "the caller may have trained": """
def one_epoch(optimizer: torch.optim.Optimizer, scheduler: lr_scheduler.LRScheduler, loader):
    for inputs, targets in loader:
        scheduler.step()
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
""",
    "updates before it in a function of another file": """
from elsewhere import warm_up
scheduler = lr_scheduler.StepLR(optimizer, 1)
for epoch in range(3):
    warm_up(model, optimizer)
    scheduler.step()
    update()
""",
    "of a second stage": """
for _ in range(100):
    update()
scheduler = lr_scheduler.ExponentialLR(optimizer, 0.99)
for _ in range(100):
    scheduler.step()
    update()
""",
    "a GAN after its epoch": """
other = nn.Linear(1, 6)
second = torch.optim.Adam(other.parameters(), lr=0.01)
schedulers = [lr_scheduler.StepLR(each, 30) for each in (optimizer, second)]
for epoch in range(3):
    for inputs, targets in loader:
        update()
        second.zero_grad()
        F.mse_loss(other(targets), inputs).backward()
        second.step()
    for scheduler in schedulers:
        scheduler.step()
""",
    "warm-up from almost zero": """
scheduler = lr_scheduler.LinearLR(optimizer, start_factor=1e-8, total_iters=10)
for _ in range(100):
    scheduler.step()
    update()
""",
    "resumed from a checkpoint": """
scheduler = lr_scheduler.StepLR(optimizer, 10)
scheduler.load_state_dict(torch.load("last.pt", weights_only=True)["scheduler"])
for epoch in range(3):
    scheduler.step()
    update()
""",
    "managed by an Accelerator": """
from accelerate import Accelerator
accelerator = Accelerator()
scheduler = lr_scheduler.StepLR(optimizer, 10)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
for inputs, targets in loader:
    accelerator.backward(F.mse_loss(model(inputs), targets))
    scheduler.step()
    optimizer.step()
    optimizer.zero_grad()
""",
}


OLD = """
scheduler = lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
for epoch in range(3):
    scheduler.step(){mark}
    for a, b in loader:
        {copy}
        optimizer.zero_grad()
        loss = F.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        print({shown})
"""


@pytest.mark.parametrize(
    ("copy", "shown"),
    [
        ("a = a.cuda(async=True)", "loss.item()"),
        ("a = a.cuda()", "loss.data[0]"),
        ("a, b = a.to(0), b.cuda(device=0, async=True)", "3"),
    ],
)
def test_lint_ignores_programs_for_an_old_pytorch(lint_codes, copy, shown):
    assert "SCH001" not in lint_codes(DATA + OLD.format(copy=copy, shown=shown, mark=""))


@pytest.mark.parametrize(
    ("copy", "shown"), [("a = a.cuda(non_blocking=True)", "loss.item()"), ("a = a.cuda()", "a.data[0]")]
)
def test_lint_reports_programs_for_any_pytorch(lint_codes, copy, shown):
    assert "SCH001" in lint_codes(DATA + OLD.format(copy=copy, shown=shown, mark=""))


@pytest.mark.parametrize("name", [*(FAULTY.keys() - LINT_MISSES), *LINT_FINDS])
def test_lint_reports_the_marked_line(lint_reports, name):
    lint_reports(DATA + {**FAULTY, **LINT_FINDS}[name])


@pytest.mark.parametrize("name", [*LINT_MISSES, *CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, name):
    lint_is_clean(DATA + {**FAULTY, **CORRECT, **LINT_IGNORES}[name])


def test_the_fix_moves_the_line_after_the_updates():
    script = """
for epoch in range(3):
    scheduler.step()  # every epoch
    for x in batches:
        update(x)  # one
"""
    text = "import torch\nmodel = torch.nn.Linear(1, 1)\noptimizer = torch.optim.SGD(model.parameters())\n"
    text += "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)\ndef update(x):\n    optimizer.zero_grad()\n"
    text += "    model(x).sum().backward()\n    optimizer.step()" + script
    fixed = fix_text(text, "train.py", [ActiveRule(FAILURE, "", RULE)], unsafe=True)
    assert fixed.text.endswith("        update(x)  # one\n    scheduler.step()  # every epoch\n")
