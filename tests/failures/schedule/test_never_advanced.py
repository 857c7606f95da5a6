"""SCH006: a scheduler that is never stepped."""

import sys
import textwrap

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset
x = torch.randn(96, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(6, 1)
"""
PLAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
def epoch():
    for a, b in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
"""

RUN_AND_LINT = {
    "in a script, and logged": """
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)  # <- SCH006
for _ in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a), b).backward()
        optimizer.step()
    print(scheduler.get_last_lr(), len(scheduler.state_dict()))
""",
    "in a function that does not get it": """
def train(model, optimizer, epochs):
    for _ in range(epochs):
        for a, b in loader:
            optimizer.zero_grad()
            F.mse_loss(model(a), b).backward()
            optimizer.step()
def main():
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = lr_scheduler.StepLR(optimizer, step_size=1)  # <- SCH006
    train(model, optimizer, 4)
main()
""",
    "passed to a function that does not use it, with a scaler": """
def train(model, optimizer, scheduler, scaler, epochs=3):
    for _ in range(epochs):
        for a, b in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(model(a).float(), b)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(scheduler.get_last_lr())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", enabled=False)
cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)  # <- SCH006
train(model, optimizer, cosine, scaler=scaler)
""",
    "held by a class, windows of several": """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.plateau = lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0)  # <- SCH006
    def fit(self, epochs):
        for _ in range(epochs):
            self.optimizer.zero_grad()
            for i, (a, b) in enumerate(loader):
                loss = F.mse_loss(self.model(a), b) / 2
                loss.backward()
                if i % 2 == 1:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
Trainer(model).fit(3)
""",
    "a warm-up and a decay in one": PLAIN
    + """
warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
decay = lr_scheduler.CosineAnnealingLR(optimizer, 12)
both = lr_scheduler.SequentialLR(optimizer, [warm, decay], [3])  # <- SCH006
for _ in range(3):
    epoch()
""",
    "without a name": PLAIN
    + """
lr_scheduler.StepLR(optimizer, 2)  # <- SCH006
for _ in range(3):
    epoch()
""",
}

RUN_ONLY = {
    "made by a helper, kept in a dictionary": PLAIN
    + """
def build():
    return {"model": model, "scheduler": lr_scheduler.StepLR(optimizer, 1)}  # <- SCH006
parts = build()
for _ in range(3):
    epoch()
print(parts["scheduler"].get_last_lr())
""",
    "a closure, and the scheduler is deleted": """
def training(rate):
    optimizer = torch.optim.LBFGS(model.parameters(), lr=rate, max_iter=2)
    def train():
        for a, b in loader:
            def closure():
                optimizer.zero_grad()
                loss = F.mse_loss(model(a), b)
                loss.backward()
                return loss
            optimizer.step(closure)
    make = lambda kind: kind(optimizer, 0.9)
    return train, [make(lr_scheduler.ExponentialLR)][:0]  # <- SCH006
train, _ = training(0.1)
for _ in range(3):
    train()
""".replace("  # <- SCH006", "").replace("kind(optimizer, 0.9)", "kind(optimizer, 0.9)  # <- SCH006"),
}

RUN_ONLY |= {
    "without a loader": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = lr_scheduler.StepLR(optimizer, 2)  # <- SCH006
for epoch in range(5):
    for part in torch.randperm(96).split(12):
        optimizer.zero_grad()
        F.mse_loss(model(x[part]), x[part].sum(1, keepdim=True)).backward()
        optimizer.step()
    print(scheduler.get_last_lr())
""",
}

TWO_STAGES = """
def stage(parts, rate):
    optimizer = torch.optim.SGD([w for part in parts for w in part.parameters()], lr=rate)
    decay = lr_scheduler.CosineAnnealingLR(optimizer, 6)  # <- SCH006
    return optimizer, decay
def one_epoch(optimizer):
    for part in torch.randperm(96).split(12):
        optimizer.zero_grad()
        F.mse_loss(model(x[part]), x[part].sum(1, keepdim=True)).backward()
        optimizer.step()
stages = [stage([model], 0.1), stage([model], 0.05)]
"""

RUN_ONLY |= {
    "the scheduler of the first stage is stepped in the second one": TWO_STAGES
    + """
scheduler = stages[0][1]
for optimizer, _ in stages:
    for epoch in range(6):
        one_epoch(optimizer)
        scheduler.step()
""",
    "the optimizer is replaced when the encoder is unfrozen": """
class Trainer:
    def __init__(self):
        self.use(0.1)
        self.decay = self.new
    def use(self, rate):
        self.optimizer = torch.optim.Adam(model.parameters(), lr=rate)  # <- OPT004
        self.new = lr_scheduler.ExponentialLR(self.optimizer, 0.9)  # <- SCH006
    def fit(self, epochs):
        for epoch in range(epochs):
            if epoch == 3:
                self.use(0.01)
            for part in torch.randperm(96).split(12):
                self.optimizer.zero_grad()
                F.mse_loss(model(x[part]), x[part].sum(1, keepdim=True)).backward()
                self.optimizer.step()
            self.decay.step()
Trainer().fit(10)
""",
}

RUN_ONLY |= {
    "conditions that compare other texts": PLAIN
    + """
settings = {"interval": "step"}
scheduler = lr_scheduler.StepLR(optimizer, 1)  # <- SCH006
for _ in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a), b).backward()
        optimizer.step()
        if scheduler is not None and settings["interval"] == "batch":
            scheduler.step()
    if scheduler is not None:
        if settings["interval"] in ("epoch", "epochs"):
            scheduler.step()
""",
    "texts that calls pass to a method": PLAIN
    + """
class Loop:
    def __init__(self, when):
        self.when = when
        self.decay = lr_scheduler.ExponentialLR(optimizer, 0.9)  # <- SCH006
    def advance(self, event):
        if self.when == event:
            self.decay.step()
    def fit(self):
        for _ in range(3):
            epoch()
            self.advance("epoch")
        self.advance(event="end")
Loop("Epoch").fit()
""",
    "match": PLAIN
    + """
def advance(kind, scheduler):
    match kind:
        case "cosine" | "step":
            scheduler.step()
        case "plateau":
            scheduler.step(1.0)
scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 9)  # <- SCH006
for _ in range(3):
    epoch()
    advance(type(scheduler).__name__, scheduler)
""",
}

LINT_ONLY = {
    "no loader": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = lr_scheduler.StepLR(optimizer, 10)  # <- SCH006
for i in range(30):
    rows = torch.randint(0, 96, (16,))
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), x[rows].sum(1, keepdim=True)).backward()
    optimizer.step()
""",
    "one of two optimizers": """
critic = nn.Linear(1, 1)
first = torch.optim.Adam(model.parameters(), lr=0.01)
second = torch.optim.Adam(critic.parameters(), lr=0.01)
one = lr_scheduler.StepLR(first, 1)
two = lr_scheduler.StepLR(second, 1)  # <- SCH006
for _ in range(4):
    for a, b in loader:
        second.zero_grad()
        (critic(model(a).detach()).mean() - critic(b).mean()).backward()
        second.step()
        first.zero_grad()
        (-critic(model(a)).mean()).backward()
        first.step()
    one.step()
""",
}

CORRECT = {
    "each stage steps its own": TWO_STAGES.replace("  # <- SCH006", "")
    + """
for optimizer, scheduler in stages:
    for epoch in range(6):
        one_epoch(optimizer)
        scheduler.step()
""",
    "both step while one optimizer waits": TWO_STAGES.replace("  # <- SCH006", "")
    + """
one_epoch(stages[1][0])
for epoch in range(6):
    one_epoch(stages[0 if epoch < 2 else 1][0])
    for _, scheduler in stages:
        scheduler.step()
""",
    "the other one steps from a later epoch on": TWO_STAGES.replace("  # <- SCH006", "")
    + """
for epoch in range(8):
    one_epoch(stages[epoch // 2 % 2][0])
    stages[0][1].step()
    if epoch > 6:
        stages[1][1].step()
""",
    "switched off by a text": PLAIN
    + """
kind = "none"
scheduler = lr_scheduler.StepLR(optimizer, 1)
for _ in range(3):
    epoch()
    if kind == "step":
        scheduler.step()
    elif kind == "plateau":
        scheduler.step(1.0)
""",
    "for one text only": PLAIN
    + """
kind = "manual"
scheduler = lr_scheduler.StepLR(optimizer, 1)
for _ in range(3):
    epoch()
    if kind == "step":
        scheduler.step()
""",
    "a text and a counter": PLAIN
    + """
scheduler = lr_scheduler.StepLR(optimizer, 1)
for turn in range(3):
    epoch()
    if "epoch" == "epoch" and turn % 10 == 9:
        scheduler.step()
    elif "batch" == "epoch":
        scheduler.step()
""",
    "by a flag": PLAIN
    + """
settings = {"decay": False, "interval": "epoch"}
scheduler = lr_scheduler.StepLR(optimizer, 1)
for turn in range(3):
    epoch()
    if settings["decay"] and settings["interval"] in ("epoch", "batch"):
        scheduler.step()
""",
    "without a loader, in an epoch that a short run does not reach": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = lr_scheduler.StepLR(optimizer, 2)
for epoch in range(5):
    for part in torch.randperm(96).split(12):
        optimizer.zero_grad()
        F.mse_loss(model(x[part]), x[part].sum(1, keepdim=True)).backward()
        optimizer.step()
    if epoch == 10:
        scheduler.step()
""",
    "advanced once an epoch": PLAIN
    + """
scheduler = lr_scheduler.StepLR(optimizer, 2)
for _ in range(3):
    epoch()
    scheduler.step()
""",
    "one epoch only": PLAIN
    + """
scheduler = lr_scheduler.StepLR(optimizer, 2)
for turn in range(1):
    epoch()
    if turn:
        scheduler.step()
""",
    "from the tenth epoch on": PLAIN
    + """
scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
for turn in range(4):
    epoch()
    if turn >= 10:
        scheduler.step()
""",
    "SWALR that a short run does not reach": PLAIN
    + """
from torch.optim.swa_utils import SWALR
scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
slow = SWALR(optimizer, swa_lr=0.05)
for turn in range(3):
    epoch()
    (slow if turn > 5 else scheduler).step()
""",
    "a SequentialLR whose second part is not reached": PLAIN
    + """
parts = [lr_scheduler.ConstantLR(optimizer, 0.5, 9), lr_scheduler.ExponentialLR(optimizer, 0.9)]
scheduler = lr_scheduler.SequentialLR(optimizer, parts, [9])
for _ in range(3):
    epoch()
    scheduler.step()
""",
    "a chain": PLAIN
    + """
scheduler = lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(optimizer), lr_scheduler.StepLR(optimizer, 1)])
for _ in range(3):
    epoch()
    scheduler.step()
""",
    "read by hand": PLAIN
    + """
scheduler = lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n)
for turn in range(4):
    for group, base in zip(optimizer.param_groups, scheduler.base_lrs):
        group["lr"] = base * scheduler.lr_lambdas[0](turn)
    epoch()
""",
    "a warm-up of the program's own around it": PLAIN
    + """
class Warm:
    def __init__(self, after, epochs):
        self.after, self.left = after, epochs
    def end_of_epoch(self):
        self.left -= 1
        if self.left < 0:
            self.after.step()
warm = Warm(lr_scheduler.StepLR(optimizer, 1), 8)
for _ in range(4):
    epoch()
    warm.end_of_epoch()
""",
    "by name, on a condition": PLAIN
    + """
scheduler = lr_scheduler.StepLR(optimizer, 1)
ends = {"epoch": ["step"]}
for turn in range(4):
    epoch()
    if turn == 9:
        getattr(scheduler, "step")()
""",
    "built to evaluate": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = lr_scheduler.StepLR(optimizer, 1)
for _ in range(3):
    with torch.no_grad():
        print(len([model(a) for a, b in loader]))
""",
    "built in every epoch to set its rate": PLAIN
    + """
for turn in range(4):
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9, last_epoch=turn - 1)
    epoch()
""",
    "two schedulers to choose from": PLAIN
    + """
choices = {"step": lr_scheduler.StepLR(optimizer, 1), "decay": lr_scheduler.ExponentialLR(optimizer, 0.9)}
for _ in range(4):
    epoch()
    choices["decay"].step()
""",
    "through a list of callbacks": PLAIN
    + """
at_the_end = []
scheduler = lr_scheduler.StepLR(optimizer, 1)
at_the_end.append(scheduler.step)
for turn in range(4):
    epoch()
    for each in at_the_end if turn > 7 else ():
        each()
""",
    "stopped by hand": PLAIN
    + """
scheduler = lr_scheduler.StepLR(optimizer, 1)
for turn in range(3):
    try:
        epoch()
        epoch()
        epoch()
        raise KeyboardInterrupt
        scheduler.step()
    except KeyboardInterrupt:
        break
""",
}

LINT_IGNORES = {
    "another scheduler of the same optimizer is stepped": PLAIN
    + """
before = lr_scheduler.StepLR(optimizer, 1)
scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
for _ in range(4):
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a), b).backward()
        optimizer.step()
    scheduler.step()
""",
    "another file may use it": """
class Trainer:
    def __init__(self, model):
        self.optimizer = torch.optim.Adam(model.parameters())
        self.scheduler = lr_scheduler.StepLR(self.optimizer, 1)
    def fit(self, model, epochs):
        for _ in range(epochs):
            for a, b in loader:
                self.optimizer.zero_grad()
                F.mse_loss(model(a), b).backward()
                self.optimizer.step()
""",
    "an imported base class may use it": """
from base import Base
class Trainer(Base):
    def __init__(self, model):
        self.optimizer = torch.optim.Adam(model.parameters())
        self.scheduler = lr_scheduler.StepLR(self.optimizer, 1)
    def fit(self):
        for _ in range(3):
            for a, b in loader:
                self.optimizer.zero_grad()
                F.mse_loss(model(a), b).backward()
                self.optimizer.step()
                self.after_update()
Trainer(model).fit()
""",
    "returned": """
def build():
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    for a, b in loader:
        optimizer.zero_grad()
        F.mse_loss(model(a), b).backward()
        optimizer.step()
    return optimizer, scheduler
""",
    "prepared by an accelerator": """
from accelerate import Accelerator
accelerator = Accelerator()
optimizer = torch.optim.Adam(model.parameters())
scheduler = lr_scheduler.StepLR(optimizer, 1)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, scheduler)
for a, b in loader:
    optimizer.zero_grad()
    accelerator.backward(F.mse_loss(model(a), b))
    optimizer.step()
    schedule.step()
""",
}


@pytest.mark.parametrize("script", [*RUN_AND_LINT.values(), *RUN_ONLY.values()], ids=[*RUN_AND_LINT, *RUN_ONLY])
def test_run_reports_the_marked_line(run_reports, script: str):
    assert "was never called" in run_reports(HEAD + script).findings[0].message


@pytest.mark.parametrize("script", [*RUN_AND_LINT.values(), *LINT_ONLY.values()], ids=[*RUN_AND_LINT, *LINT_ONLY])
def test_lint_reports_the_marked_line(lint_reports, script: str):
    lint_reports(HEAD + script, fixes=False)


def test_lint_reports_a_step_without_parentheses(lint_reports):
    lint_reports(
        HEAD
        + PLAIN
        + """
decay = lr_scheduler.ExponentialLR(optimizer, 0.9)
for _ in range(3):
    epoch()
    decay.step  # <- SCH006
"""
    )


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_ignores_correct_programs(run_is_clean, script: str):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", [*CORRECT.values(), *LINT_IGNORES.values()], ids=[*CORRECT, *LINT_IGNORES])
def test_lint_ignores_correct_and_undecidable_programs(lint_is_clean, script: str):
    lint_is_clean(HEAD + script)


LOOP = """
def run(update, loader, epochs):
    for epoch in range(epochs):
        for batch in loader:
            update(batch)
"""


@pytest.mark.parametrize("installed", [False, True])
def test_a_library_that_runs_the_loop_may_step_it(run, tmp_path, monkeypatch, installed):
    folder = tmp_path / "site-packages" if installed else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "loop_module.py").write_text(textwrap.dedent(LOOP))
    monkeypatch.syspath_prepend(str(folder))
    ran = run(
        HEAD
        + """
from loop_module import run
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = lr_scheduler.StepLR(optimizer, 1)
def update(batch):
    optimizer.zero_grad()
    F.mse_loss(model(batch[0]), batch[1]).backward()
    optimizer.step()
run(update, loader, 3)
"""
    )
    del sys.modules["loop_module"]
    assert {each.code for each in ran.findings} == (set() if installed else {"SCH006"})


def test_run_ignores_a_scheduler_that_an_imported_file_may_step(run, tmp_path, monkeypatch):
    (tmp_path / "step_module.py").write_text(
        "def end(scheduler, epoch):\n    if epoch > 9:\n        scheduler.step()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    script = (
        HEAD
        + PLAIN
        + """
import step_module
scheduler = lr_scheduler.StepLR(optimizer, 1)
for turn in range(3):
    epoch()
    step_module.end(scheduler, turn)
"""
    )
    assert not run(script).findings
    del sys.modules["step_module"]


LISTS = """
import torch
class Base:
    def setup(self, net, names):
        self.optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        self.schedulers = []
        {filled}
    def update_learning_rate(self):
        for scheduler in self.schedulers:{mark}
            scheduler.step()
    def fit(self, loader):
        for x in loader:
            self.optimizer.zero_grad()
            self.net(x).sum().backward()
            self.optimizer.step()
        self.update_learning_rate()
"""


@pytest.mark.parametrize("filled", ["pass", "self.schedulers = list()", "print(len(self.schedulers))"])
def test_lint_reports_steps_of_an_empty_list(lint_reports, filled):
    lint_reports(LISTS.format(filled=filled, mark="  # <- SCH006"))


@pytest.mark.parametrize(
    "filled",
    [
        "self.schedulers.append(StepLR(self.optimizer, 3))",
        "self.schedulers += [StepLR(self.optimizer, 3)]",
        "self.schedulers = [get_scheduler(self.optimizer) for _ in names]",
        "add_schedulers(self.schedulers)",
        "found = self.schedulers\n        found.append(StepLR(self.optimizer, 3))",
        "setattr(self, 'schedulers', make(names))",
    ],
)
def test_lint_accepts_lists_that_may_be_filled(lint_codes, filled):
    assert "SCH006" not in lint_codes(LISTS.format(filled=filled, mark=""))
