"""DAT043: an evaluation within the training loop that overwrites the training batch."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(300, 8)
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x[:200], y[:200]), 20, shuffle=True)
val_loader = DataLoader(TensorDataset(x[200:], y[200:]), 25)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
loss_of = nn.CrossEntropyLoss()

def step(a, b):
    model.train()
    loss = loss_of(model(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BOTH = {
    "every few steps": """
for epoch in range(4):
    for i, batch in enumerate(train_loader):
        if i % 5 == 0:
            model.eval()
            hits = 0
            with torch.no_grad():
                for batch in val_loader:  # <- LINT
                    hits += (model(batch[0]).argmax(1) == batch[1]).sum().item()  # <- RUN
            model.train()
        inputs, labels = batch
        loss = loss_of(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "before each step, in a method": """
class Trainer:
    def __init__(self, loader, other_loader):
        self.loader, self.other_loader = loader, other_loader
    def epoch(self):
        for a, b in self.loader:
            with torch.no_grad():
                model.eval()
                for j, (a, c) in enumerate(self.other_loader):  # <- LINT
                    model(a).argmax(1)  # <- RUN
                model.train()
            a = a.float()
            b = b[:len(a)] if len(b) > len(a) else c[:len(a)]
            optimizer.zero_grad()
            loss_of(model(a), b[:len(a)]).backward()
            optimizer.step()
for _ in range(2):
    parts = (DataLoader(TensorDataset(x[part], y[part]), 25) for part in torch.arange(400)[:300].split(200))
    Trainer(*parts).epoch()
""",
}
RUN_ONLY = {
    "batches by hand, a step in a function": """
for epoch in range(4):
    for i, rows in enumerate(torch.randperm(200).split(20)):
        a, b = x[rows], y[rows]
        if i % 4 == 1:
            model.eval()
            with torch.no_grad():
                for a, b in zip(x[200:].split(25), y[200:].split(25)):
                    model(a)  # <- RUN
        step(a, b)
""",
}
CORRECT = {
    "other names": """
for epoch in range(4):
    for i, (a, b) in enumerate(train_loader):
        if i % 4 == 0:
            model.eval()
            with torch.no_grad():
                for c, d in val_loader:
                    model(c)
            model.train()
        optimizer.zero_grad()
        loss_of(model(a), b).backward()
        optimizer.step()
""",
    "after the step": """
for epoch in range(4):
    for i, (a, b) in enumerate(train_loader):
        model.train()
        optimizer.zero_grad()
        loss_of(model(a), b).backward()
        optimizer.step()
        if i % 4 == 0:
            model.eval()
            with torch.no_grad():
                for a, b in val_loader:
                    model(a)
""",
    "drawn again": """
batches = iter(train_loader)
for a, b in train_loader:
    model.eval()
    with torch.no_grad():
        for a, b in val_loader:
            model(a)
    model.train()
    a, b = next(batches)
    optimizer.zero_grad()
    loss_of(model(a), b).backward()
    optimizer.step()
""",
    "pseudo-labels for each batch": """
for epoch in range(3):
    for a, _ in train_loader:
        model.eval()
        with torch.no_grad():
            guess = (model(a + 0.1).softmax(1) + model(a).softmax(1)).argmax(1)
        step(a, guess)
""",
    "several guesses at one line, averaged": """
for epoch in range(3):
    for a, _ in train_loader:
        model.eval()
        with torch.no_grad():
            guess = sum(model(each).softmax(1) for each in (a, a + 0.1)).argmax(1)
        step(a, guess)
""",
    "an inner loop that trains on parts": """
for a, b in train_loader:
    for a, b in DataLoader(TensorDataset(a, b), 5):
        optimizer.zero_grad()
        loss_of(model(a), b).backward()
        optimizer.step()
""",
    "batches in order": """
for epoch in range(3):
    for a, b in val_loader:
        model.eval()
        with torch.no_grad():
            model(a)
        step(a, b)
""",
}


@pytest.mark.parametrize("script", BOTH.values(), ids=BOTH)
def test_lint_reports_the_inner_loop(lint_reports, script):
    lint_reports(HEAD + script.replace("# <- LINT", "# <- DAT043"))


@pytest.mark.parametrize("script", [*BOTH.values(), *RUN_ONLY.values()], ids=[*BOTH, *RUN_ONLY])
def test_run_reports_the_evaluation(run_reports, script):
    run_reports(HEAD + script.replace("# <- RUN", "# <- DAT043"))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT043")


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)
