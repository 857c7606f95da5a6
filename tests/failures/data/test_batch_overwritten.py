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
    "all data at once, with masks for the parts": """
train, val, test = torch.arange(300) < 150, torch.arange(300) % 2 == 0, torch.arange(300) > 200
def accuracy(mask):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1)[mask] == y[mask]).float().mean().item()
best = 0.0
for epoch in range(20):
    model.train()
    loss = loss_of(model(x)[train], y[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 3 == 0 and accuracy(val) >= best:
        best, at_best = accuracy(val), accuracy(test)
""",
    "all training data at once, judged last": """
def accuracy(a, b):
    model.eval()
    with torch.no_grad():
        return (model(a).argmax(1) == b).float().mean().item()
for epoch in range(20):
    step(x[:200], y[:200])
    if epoch % 3 == 0:
        print(accuracy(x[200:], y[200:]), accuracy(x[:200], y[:200]))
""",
    "the same, judged before each step": """
def accuracy(a, b):
    model.eval()
    with torch.no_grad():
        return (model(a).argmax(1) == b).float().mean().item()
for epoch in range(20):
    print(accuracy(x[200:], y[200:]), accuracy(x[:200], y[:200]))
    step(x[:200], y[:200])
""",
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


SOURCE_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x, y = torch.randn(160, 8), torch.randint(0, 2, (160,))
train_loader = DataLoader(TensorDataset(x[:120], y[:120]), batch_size=20, shuffle=True)
val_loader = DataLoader(TensorDataset(x[120:], y[120:]), batch_size=20)
model, criterion = nn.Linear(8, 2), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
STEP = """
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
REPLACED = {
    "the names of the batch": """
for it, (x, y) in enumerate(train_loader):
    if it % 10 == 0:
        model.eval()
        with torch.no_grad():
            for x, y in val_loader:  # <- DAT043
                total = criterion(model(x), y).item()
    model.train()"""
    + STEP,
    "a batch that is moved": """
for x, y in train_loader:
    x, y = x.to("cpu"), y.to("cpu")
    for x, y in val_loader:  # <- DAT043
        x, y = x.to("cpu"), y.to("cpu")
        total = criterion(model(x), y).item()"""
    + STEP,
    "a dictionary": """
for batch in train_loader:
    for batch in val_loader:  # <- DAT043
        total = criterion(model(batch["x"]), batch["y"]).item()"""
    + STEP.replace("model(x), y", "model(batch['x']), batch['y']"),
    "only the labels": """
for step in range(100):
    x, y = next(iter(train_loader))
    for inputs, y in val_loader:  # <- DAT043
        total = criterion(model(inputs), y).item()"""
    + STEP,
    "batches cut by hand": """
vx, vy = torch.randn(80, 8), torch.randint(0, 2, (80,))
for step in range(100):
    pick = torch.randint(160, (20,))
    x, y = data[pick], labels[pick]
    if step % 10 == 0:
        for start in range(0, 80, 20):  # <- DAT043
            x, y = vx[start : start + 20], vy[start : start + 20]
            total = criterion(model(x), y).item()"""
    + STEP,
    "all training data": """
def fit(model, x, y, val_loader):
    for epoch in range(10):"""
    + STEP.replace("\n", "\n    ")
    + """
        for x, y in val_loader:  # <- DAT043
            total = criterion(model(x), y).item()
""",
    "a method": """
class Trainer:
    def fit(self):
        for images, labels in self.train_loader:
            if self.step % 10 == 0:
                for images, labels in self.val_loader:  # <- DAT043
                    self.total += criterion(self.model(images), labels).item()
            loss = criterion(self.model(images), labels)
            loss.backward()
""",
    "the outputs": """
for x, y in train_loader:
    out = model(x)
    for a, b in val_loader:  # <- DAT043
        out = model(a)
        total = criterion(out, b).item()"""
    + STEP.replace("model(x)", "out"),
}
KEPT = {
    "other names": """
for x, y in train_loader:
    for a, b in val_loader:
        total = criterion(model(a), b).item()"""
    + STEP,
    "validation after the step": """
for x, y in train_loader:"""
    + STEP
    + """
    for x, y in val_loader:
        totals.append(criterion(model(x), y).item())
    print(x.shape, totals)
""",
    "a comprehension": """
for x, y in train_loader:
    total = sum(criterion(model(x), y).item() for x, y in val_loader)"""
    + STEP,
    "assigned again": """
for batch in train_loader:
    for x, y in val_loader:
        total = criterion(model(x), y).item()
    x, y = batch"""
    + STEP,
    "assigned after a kept copy": """
for x, y in train_loader:
    kept = x, y
    for x, y in val_loader:
        total = criterion(model(x), y).item()
    x, y = kept"""
    + STEP,
    "the end of training": """
for it, (x, y) in enumerate(train_loader):
    if it == 100:
        for x, y in val_loader:
            total = criterion(model(x), y).item()
        break"""
    + STEP,
    "either of both": """
for it, (x, y) in enumerate(train_loader):
    if it % 10 == 0:
        for x, y in val_loader:
            total = criterion(model(x), y).item()
    else:"""
    + STEP.replace("\n", "\n    "),
    "parts of the batch": """
for x, y in train_loader:
    h = x
    for x in x.split(5):
        h = model(x)"""
    + STEP,
    "tasks": """
for x, y, task_loader in tasks_loader:
    for x, y in task_loader:
        total = criterion(model(x), y).item()"""
    + STEP,
    "micro-batches": """
for x, y in train_loader:
    for x, y in zip(x.split(5), y.split(5)):"""
    + STEP.replace("\n", "\n    "),
    "one after the other": """
for epoch in range(3):
    for x, y in train_loader:"""
    + STEP.replace("\n", "\n    ")
    + """
    for x, y in val_loader:
        totals.append(criterion(model(x), y).item())
    print(totals)
""",
    "a value of the last validation": """
val_loss = 1.0
for epoch in range(3):
    rate = 0.1 / val_loss
    for x, y in train_loader:"""
    + STEP.replace("\n", "\n    ")
    + """
    for a, b in val_loader:
        val_loss = criterion(model(a), b).item()
""",
    "running sums": """
total = 0.0
for x, y in train_loader:
    seen = 0
    for a, b in val_loader:
        total = total + criterion(model(a), b).item()
        seen = seen + 1
    rate = total / seen"""
    + STEP,
}


@pytest.mark.parametrize("script", REPLACED.values(), ids=REPLACED)
def test_lint_reports_other_ways_to_replace_the_batch(lint_reports, script):
    lint_reports(SOURCE_HEAD + script)


@pytest.mark.parametrize("script", KEPT.values(), ids=KEPT)
def test_lint_accepts_batches_that_are_kept(lint_is_clean, script):
    lint_is_clean(SOURCE_HEAD + script, "DAT043")
