"""SCH005: ReduceLROnPlateau with the wrong mode."""

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,))), batch_size=16)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
def train():
    total = 0.0
    for a, b in loader:
        optimizer.zero_grad()
        loss = criterion(model(a), b)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(b)
    return total / 64
@torch.no_grad()
def evaluate():
    total, right = 0.0, 0
    for a, b in loader:
        outputs = model(a)
        total += F.cross_entropy(outputs, b).item()
        right += (outputs.argmax(1) == b).sum().item()
    return total / len(loader), right / 64
"""

CORRECT = {
    "both modes used correctly": """
by_loss = ReduceLROnPlateau(optimizer, "min", patience=2)
by_score = ReduceLROnPlateau(optimizer, mode="max", patience=2)
for _ in range(4):
    train()
    loss, accuracy = evaluate()
    by_loss.step(loss)
    by_score.step(accuracy)
""",
    "the default with a loss": """
scheduler = ReduceLROnPlateau(optimizer)
for _ in range(4):
    scheduler.step(train())
""",
    "a negated loss, one minus an accuracy": """
up = ReduceLROnPlateau(optimizer, "max")
down = ReduceLROnPlateau(optimizer)
for _ in range(4):
    train()
    loss, accuracy = evaluate()
    up.step(-loss)
    up.step(1.0 - loss)
    up.step(-1.0 * loss)
    down.step(1 - accuracy)
""",
    "an error rate": """
scheduler = ReduceLROnPlateau(optimizer)
for _ in range(4):
    train()
    with torch.no_grad():
        errors = sum((model(a).argmax(1) != b).float().mean().item() for a, b in loader)
    scheduler.step(errors)
""",
    "a mode from the settings": """
def run(mode, patience=2):
    scheduler = ReduceLROnPlateau(optimizer, mode, patience=patience)
    for _ in range(4):
        scheduler.step(train())
""",
    "a score from elsewhere, a loss of a margin": """
from elsewhere import score
scheduler = ReduceLROnPlateau(optimizer, "max")
for _ in range(4):
    train()
    scheduler.step(score(model, evaluate()[0]))
    scheduler.step(np.exp(-evaluate()[0]))
""",
    "labels that are counted": """
scheduler = ReduceLROnPlateau(optimizer)
for a, b in loader:
    scheduler.step((b == 0).float().mean())
""",
    "functions whose names say the direction, from elsewhere": """
from metrics import mean_iou, score_of, val_loss
up = ReduceLROnPlateau(optimizer, "max")
down = ReduceLROnPlateau(optimizer)
for _ in range(4):
    score = mean_iou(model, loader)
    up.step(score)
    value = 1 - mean_iou(model, loader)
    down.step(value)
    result = val_loss(model, loader)
    down.step(result)
    unknown = score_of(model, loader)
    down.step(unknown)
""",
}

FAULTY = {
    "a function whose name says the direction": """
class Trainer:
    def __init__(self, scheduler=None):
        self.scheduler = ReduceLROnPlateau(optimizer, factor=0.5)
    def miou(self, loader):
        k = 3
        table = torch.zeros(k, k)
        for a, b in loader:
            table += torch.bincount((b * k + model(a).argmax(1)), minlength=9).view(k, k)
        return (table.diag() / (table.sum(0) + table.sum(1) - table.diag())).mean().item()
    def fit(self):
        for _ in range(4):
            train()
            score = self.miou(loader)
            self.scheduler.step(score)  # <- SCH005
Trainer().fit()
""",
    "a loss of the training": """
scheduler = ReduceLROnPlateau(optimizer, "max", patience=2)
for _ in range(4):
    scheduler.step(train())  # <- SCH005
""",
    "a held-out loss": """
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, mode="max")
for _ in range(4):
    train()
    held_out, accuracy = evaluate()
    scheduler.step(held_out)  # <- SCH005
""",
    "an accuracy with the default, in a class": """
class Trainer:
    def __init__(self):
        self.scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    def fit(self):
        for _ in range(4):
            train()
            _, accuracy = evaluate()
            self.scheduler.step(accuracy)  # <- SCH005
Trainer().fit()
""",
    "a mean of losses": """
scheduler = ReduceLROnPlateau(optimizer, mode="max")
for _ in range(4):
    losses = []
    for a, b in loader:
        optimizer.zero_grad()
        loss = criterion(model(a), b)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    scheduler.step(np.mean(losses))  # <- SCH005
""",
    "a share in per cent, handed to a helper": """
def end(scheduler, metric):
    scheduler.step(100.0 * metric)  # <- SCH005
scheduler = ReduceLROnPlateau(optimizer, "min")
for _ in range(4):
    train()
    right = 0
    for a, b in loader:
        right += (torch.argmax(model(a), dim=1) == b).float().sum()
    end(scheduler, right / 64)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_marked_line(lint_reports, script):
    lint_reports(HEAD + script, fixes=True)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script)


# The sanitizer -----------------------------------------------------------------------------------------------------

RUN_FAULTY = {
    "the item that the settings name": """
CONFIG = dict(monitor="val_r2", plateau=dict(factor=0.3, patience=2))
class Run:
    def __init__(self, cfg):
        self.cfg, self.sched = cfg, ReduceLROnPlateau(optimizer, **cfg["plateau"])
    def __call__(self):
        for epoch in range(5):
            logs = {"train_mse": 1 / (epoch + 1), "val_r2": 0.1 * epoch}
            self.sched.step(logs[self.cfg["monitor"]])  # <- SCH005
Run(CONFIG)()
""",
    "the variable of the caller": """
scheduler = ReduceLROnPlateau(optimizer, patience=2)
def end_of_epoch(value):
    scheduler.step(value)  # <- SCH005
def main():
    for epoch in range(5):
        accuracy = 0.1 * epoch + 0.05
        end_of_epoch(accuracy)
main()
""",
    "the result of a function, in a trainer": """
class Trainer:
    def __init__(self):
        self.scheduler, self.values = ReduceLROnPlateau(optimizer, patience=1), [0.3, 0.4, 0.55]
    def mean_iou(self):
        return self.values.pop(0)
    def fit(self):
        for epoch in range(3):
            train()
            score = self.mean_iou()
            self.scheduler.step(score)  # <- SCH005
Trainer().fit()
""",
    "an accuracy as a parameter, in a trainer": """
class Trainer:
    def __init__(self):
        self.scheduler = ReduceLROnPlateau(optimizer, factor=0.2, patience=1)
    def end_of_epoch(self, val_acc):
        self.scheduler.step(val_acc)  # <- SCH005
trainer = Trainer()
for accuracy in (0.3, 0.4, 0.55):
    train()
    trainer.end_of_epoch(accuracy)
""",
    "a value of a dictionary": """
scheduler = ReduceLROnPlateau(optimizer, mode="max")
for epoch in range(3):
    train()
    metrics = {"val_loss": torch.tensor(1.0 - 0.1 * epoch)}
    scheduler.step(metrics["val_loss"].item())  # <- SCH005
""",
}
RUN_CORRECT = {
    "the item that the settings name, with its mode": """
monitor = "val_r2"
scheduler = ReduceLROnPlateau(optimizer, mode="max")
for epoch in range(5):
    logs = {"train_mse": 1 / (epoch + 1), "val_r2": 0.1 * epoch}
    scheduler.step(logs[monitor])
""",
    "a negated accuracy of the caller": """
scheduler = ReduceLROnPlateau(optimizer, patience=2)
def end_of_epoch(value):
    scheduler.step(value)
for epoch in range(5):
    accuracy = 0.1 * epoch + 0.05
    end_of_epoch(-accuracy)
""",
    "names that contradict each other": """
scheduler = ReduceLROnPlateau(optimizer, patience=2)
def end_of_epoch(value):
    scheduler.step(value)
for epoch in range(5):
    accuracy = loss = 0.1 * epoch + 0.05
    end_of_epoch(loss)
""",
    "an accuracy that never rises": """
scheduler = ReduceLROnPlateau(optimizer)
for accuracy in (0.5, 0.4, 0.4):
    train()
    scheduler.step(accuracy)
""",
    "an error rate, and a loss that rises": """
scheduler = ReduceLROnPlateau(optimizer)
for accuracy_error, loss in ((0.5, 1.0), (0.6, 1.2), (0.4, 1.3)):
    train()
    scheduler.step(accuracy_error)
""",
    "a name that says nothing": """
scheduler = ReduceLROnPlateau(optimizer)
for value in (0.5, 0.6, 0.7):
    train()
    scheduler.step(value)
""",
}


@pytest.mark.parametrize("script", RUN_FAULTY.values(), ids=RUN_FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


RUN_CORRECT |= {name: script for name, script in CORRECT.items() if "from elsewhere" not in name}


@pytest.mark.parametrize("script", RUN_CORRECT.values(), ids=RUN_CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


RETURNED = """
from collections import OrderedDict
def judge():
    total = 0.0
    for a, b in loader:
        total += criterion(model(a), b).item()
    log = OrderedDict([("val_loss", total / len(loader)), ("val_auc", area(model))])
    return {result}
scheduler = ReduceLROnPlateau(optimizer, "max")
for _ in range(4):
    train()
    scheduler.step(judge()["{key}"]){mark}
"""
DICTIONARIES = ("log", "dict(log)", "OrderedDict(log)", "dict(log, epoch=3)")


@pytest.mark.parametrize("result", DICTIONARIES)
def test_lint_takes_the_named_item_of_a_dictionary(lint_reports, lint_codes, result):
    assert lint_codes(HEAD + RETURNED.format(result=result, key="val_auc", mark="")) == []
    lint_reports(HEAD + RETURNED.format(result=result, key="val_loss", mark="  # <- SCH005"))
