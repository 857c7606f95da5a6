"""GRD020: backward and step after the loop over the batches."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.MSELoss()
"""

FAULTY = {
    "in a function, with a running loss": """
def train_epoch(model, loader):
    model.train()
    running = 0.0
    for i, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        out = model(a)
        loss = criterion(out, b)
        running += loss.item()
    loss.backward()  # <- GRD020
    optimizer.step()
    return running / len(loader)
for epoch in range(4):
    train_epoch(model, loader)
""",
    "with a validation loader": """
val_loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randn(64, 1)), batch_size=16)
for epoch in range(3):
    model.train()
    for a, b in loader:
        optimizer.zero_grad()
        loss = criterion(model(a), b)
    loss.backward()  # <- GRD020
    optimizer.step()
    model.eval()
    with torch.no_grad():
        for a, b in val_loader:
            error = criterion(model(a), b)
""",
    "a class": """
class Trainer:
    def fit(self):
        for epoch in range(4):
            total = 0.0
            for a, b in loader:
                self.loss = nn.functional.mse_loss(model(a), b) + 0.01 * model[0].weight.square().sum()
                total = total + self.loss.item()
            optimizer.zero_grad()
            self.loss.backward()  # <- GRD020
            optimizer.step()
Trainer().fit()
""",
}
ONLY_IN_THE_SOURCE = {
    "batches cut by hand": """
for epoch in range(4):
    for i in range(0, len(x), 16):
        loss = criterion(model(x[i:i + 16]), y[i:i + 16])
    optimizer.zero_grad()
    loss.backward()  # <- GRD020
    optimizer.step()
""",
    "returned, scaled": """
scaler = torch.amp.GradScaler("cpu", enabled=False)
def run(loader):
    for a, b in loader:
        loss = (model(a) - b).square().mean()
    return loss
for epoch in range(4):
    loss = run(loader)
    optimizer.zero_grad()
    scaler.scale(loss).backward()  # <- GRD020
    scaler.step(optimizer)
    scaler.update()
""",
    "split": """
for epoch in range(4):
    for batch in torch.randperm(len(x)).split(16):
        optimizer.zero_grad()
        loss = criterion(model(x[batch]), y[batch])
        print(loss)
    loss.backward()  # <- GRD020
    optimizer.step()
""",
}

CORRECT = {
    "losses that are added up": """
for epoch in range(4):
    optimizer.zero_grad()
    total = 0
    for a, b in loader:
        loss = criterion(model(a), b)
        total = total + loss / len(loader)
    total.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses = []
    for a, b in loader:
        loss = criterion(model(a), b)
        losses.append(loss)
    torch.stack(losses).mean().backward()
    optimizer.step()
""",
    "one loss of all outputs": """
for epoch in range(4):
    outputs, targets = [], []
    for a, b in loader:
        outputs.append(model(a))
        targets.append(b)
    optimizer.zero_grad()
    loss = criterion(torch.cat(outputs), torch.cat(targets))
    loss.backward()
    optimizer.step()
""",
    "the hardest batch": """
for epoch in range(4):
    hardest = None
    for a, b in loader:
        loss = criterion(model(a), b)
        if hardest is None or loss > hardest:
            hardest = loss
    optimizer.zero_grad()
    hardest.backward()
    optimizer.step()
""",
    "a sequence whose state is carried": """
cell, head = nn.GRUCell(8, 16), nn.Linear(16, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
for epoch in range(4):
    h = torch.zeros(16, 16)
    for a, b in loader:
        h = cell(a, h)
        loss = criterion(head(h), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a loss measured before an update with all samples": """
for epoch in range(4):
    errors = []
    for a, b in loader:
        loss = criterion(model(a), b)
        errors.append(loss.item())
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
""",
    "statistics of BatchNorm": """
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(4):
    for a, b in loader:
        with torch.no_grad():
            model(a)
    for a, b in loader:
        optimizer.zero_grad()
        loss = criterion(model(a), b)
        loss.backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", (FAULTY | ONLY_IN_THE_SOURCE).values(), ids=(FAULTY | ONLY_IN_THE_SOURCE).keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)


TERMS = """
import torch
from functools import reduce
from torch import nn
torch.manual_seed(0)
x = torch.randn(90, 6)
goals = {"sum": x.sum(1), "first": x[:, 0], "last": x[:, -1].square()}
body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
heads = nn.ModuleDict({name: nn.Linear(8, 1) for name in goals})
optimizer = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.01)
criterion = nn.MSELoss()
def outputs():
    features = body(x)
    return {name: head(features)[:, 0] for name, head in heads.items()}
def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
REDUCED = {
    "a function without a name": """
joint = lambda out: reduce(lambda total, k: criterion(out[k], goals[k]), goals, torch.zeros(()))  # <- GRD020
for _ in range(9):
    update(joint(outputs()))
""",
    "a function": """
def joint(out):
    def add(total, name):
        loss = criterion(out[name], goals[name])
        return loss
    return reduce(add, goals, 0.0)  # <- GRD020
for _ in range(9):
    update(joint(outputs()))
""",
}
LOOPED = {
    "a dictionary of heads": """
for _ in range(9):
    out = outputs()
    optimizer.zero_grad()
    for name, values in out.items():
        loss = criterion(values, goals[name])
    loss.backward()  # <- GRD020
    optimizer.step()
""",
    "pairs, in a method": """
class Trainer:
    def step(self, predictions, targets):
        optimizer.zero_grad()
        for prediction, target in zip(predictions, targets):
            total_loss = nn.functional.l1_loss(prediction, target)
        total_loss.backward()  # <- GRD020
        optimizer.step()
for _ in range(9):
    Trainer().step(outputs().values(), [*goals.values()])
""",
}
SUMMED = {
    "a sum": """
joint = lambda out: reduce(lambda total, k: total + criterion(out[k], goals[k]), goals, torch.zeros(()))
for _ in range(9):
    update(joint(outputs()))
""",
    "other reductions": """
import operator
last = reduce(lambda before, after: after, goals)
for _ in range(9):
    out = outputs()
    update(reduce(operator.add, [criterion(out[k], goals[k]) for k in goals]))
    worst = reduce(lambda _, k: criterion(out[k], goals[k]), goals)
""",
    "a sum in a loop": """
for _ in range(9):
    out = outputs()
    loss = 0.0
    for name, values in out.items():
        loss = loss + criterion(values, goals[name])
    update(loss)
""",
    "a list of terms, and the largest one": """
for _ in range(9):
    out, terms = outputs(), []
    for name, values in out.items():
        loss = criterion(values, goals[name])
        terms.append(loss)
    torch.stack(terms).sum().backward()
    worst = None
    for values, goal in zip(out.values(), goals.values()):
        loss = criterion(values, goal)
        worst = loss if worst is None or loss > worst else worst
    optimizer.step()
    optimizer.zero_grad()
""",
    "an output that goes through the layers": """
layers = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})
other = torch.optim.SGD(layers.parameters(), lr=0.01)
for _ in range(9):
    h = x
    for layer in layers.values():
        h = layer(h)
        loss = criterion(h, x)
    other.zero_grad()
    loss.backward()
    other.step()
""",
}


@pytest.mark.parametrize("script", REDUCED.values(), ids=REDUCED)
def test_run_reports_reductions_that_ignore_the_sum(run, script):
    assert {("GRD020", each) for each in _marked(TERMS + script)} <= run(TERMS + script).reported_lines


@pytest.mark.parametrize("script", [*REDUCED.values(), *LOOPED.values()], ids=[*REDUCED, *LOOPED])
def test_lint_reports_terms_that_are_replaced(lint_reports, script):
    lint_reports(TERMS + script)


@pytest.mark.parametrize("script", SUMMED.values(), ids=SUMMED)
def test_run_and_lint_accept_terms_that_are_added(run, lint_is_clean, script):
    assert "GRD020" not in {each.code for each in run(TERMS + script).findings}
    lint_is_clean(TERMS + script, "GRD020")


def _marked(script: str) -> list[int]:
    return [number for number, line in enumerate(script.splitlines(), 1) if "# <-" in line]
