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
