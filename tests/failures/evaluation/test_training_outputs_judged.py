"""EVL025: the validation loop judges variables of the training loop."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
x, y = torch.randn(160, 8), torch.randint(0, 2, (160,))
train_loader = DataLoader(TensorDataset(x[:120], y[:120]), batch_size=20, shuffle=True)
val_loader = DataLoader(TensorDataset(x[120:], y[120:]), batch_size=20)
model, criterion = nn.Linear(8, 2), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
TRAIN = """
for images, labels in train_loader:
    outputs = model(images)
    loss = criterion(outputs, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
total = right = 0
"""
FAULTY = {
    "outputs": TRAIN
    + """
for a, b in val_loader:
    predicted = model(a)
    total += criterion(outputs, b).item()  # <- EVL025
""",
    "labels": TRAIN
    + """
with torch.no_grad():
    for a, b in val_loader:
        right += (model(a).argmax(1) == labels).sum().item()  # <- EVL025
""",
    "inputs": TRAIN
    + """
for step, (a, b) in enumerate(val_loader):
    out = model(images)  # <- EVL025
    total += criterion(out, b).item()
""",
    "the loss": TRAIN
    + """
for a, b in val_loader:
    val_loss = criterion(model(a), b)
    total += loss.item()  # <- EVL025
print(total / len(val_loader))
""",
    "a class": TRAIN
    + """
for a, b in val_loader:
    out = model(a)
    _, predicted = torch.max(outputs, 1)  # <- EVL025
    right += (predicted == b).sum().item()
""",
    "in a function": """
def fit(model, train_loader, val_loader):"""
    + TRAIN.replace("\n", "\n    ")
    + """
    for a, b in val_loader:
        out = model(a)
        total += criterion(outputs, b).item()  # <- EVL025
""",
    "a function that sees the variables of the program": """
def validate():
    total = 0
    for a, b in val_loader:
        scores = model(a)
        total += criterion(scores, labels).item()  # <- EVL025
    return total
"""
    + TRAIN
    + "validate()",
}
CORRECT = {
    "the same names": TRAIN
    + """
for images, labels in val_loader:
    outputs = model(images)
    total += criterion(outputs, labels).item()
""",
    "its own names": TRAIN
    + """
for a, b in val_loader:
    total += criterion(model(a), b).item()
    print(loss.item(), f"{outputs.mean()}")
""",
    "a state from before": "hidden = torch.zeros(2)\n"
    + TRAIN.replace("loss.backward", "hidden = outputs.detach().mean(0)\n    loss.backward")
    + """
for a, b in val_loader:
    total += criterion(model(a) + hidden, b).item()
""",
    "an example that is kept": TRAIN
    + """
labels = labels[:1]
for a, b in val_loader:
    total += criterion(model(a), b).item() + labels.sum()
""",
    "a number of features": TRAIN.replace("    loss.backward", "    features = images.shape[1]\n    loss.backward")
    + """
for a, b in val_loader:
    total += criterion(model(a.view(-1, features)), b).item()
""",
    "two training loops": TRAIN + TRAIN.replace("train_loader", "val_loader"),
    "parameters": """
def judge(outputs, labels):
    total = 0
    for a, b in val_loader:
        total += (criterion(outputs, labels) + criterion(model(a), b)).item()
    return total
"""
    + TRAIN
    + "judge(model(x), y)",
}

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
            for x, y in val_loader:  # <- EVL025
                total = criterion(model(x), y).item()
    model.train()"""
    + STEP,
    "a batch that is moved": """
for x, y in train_loader:
    x, y = x.to("cpu"), y.to("cpu")
    for x, y in val_loader:  # <- EVL025
        x, y = x.to("cpu"), y.to("cpu")
        total = criterion(model(x), y).item()"""
    + STEP,
    "a dictionary": """
for batch in train_loader:
    for batch in val_loader:  # <- EVL025
        total = criterion(model(batch["x"]), batch["y"]).item()"""
    + STEP.replace("model(x), y", "model(batch['x']), batch['y']"),
    "only the labels": """
for step in range(100):
    x, y = next(iter(train_loader))
    for inputs, y in val_loader:  # <- EVL025
        total = criterion(model(inputs), y).item()"""
    + STEP,
    "batches cut by hand": """
vx, vy = torch.randn(80, 8), torch.randint(0, 2, (80,))
for step in range(100):
    pick = torch.randint(160, (20,))
    x, y = data[pick], labels[pick]
    if step % 10 == 0:
        for start in range(0, 80, 20):  # <- EVL025
            x, y = vx[start : start + 20], vy[start : start + 20]
            total = criterion(model(x), y).item()"""
    + STEP,
    "all training data": """
def fit(model, x, y, val_loader):
    for epoch in range(10):"""
    + STEP.replace("\n", "\n    ")
    + """
        for x, y in val_loader:  # <- EVL025
            total = criterion(model(x), y).item()
""",
    "a method": """
class Trainer:
    def fit(self):
        for images, labels in self.train_loader:
            if self.step % 10 == 0:
                for images, labels in self.val_loader:  # <- EVL025
                    self.total += criterion(self.model(images), labels).item()
            loss = criterion(self.model(images), labels)
            loss.backward()
""",
    "the outputs": """
for x, y in train_loader:
    out = model(x)
    for a, b in val_loader:  # <- EVL025
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
        total = criterion(model(x), y).item()
    print(x.shape, total)
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
        total = criterion(model(x), y).item()
    print(total)
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


@pytest.mark.parametrize("script", [*FAULTY.values(), *REPLACED.values()], ids=[*FAULTY, *REPLACED])
def test_lint_reports_variables_of_the_training_loop(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", [*CORRECT.values(), *KEPT.values()], ids=[*CORRECT, *KEPT])
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL025")
