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


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_variables_of_the_training_loop(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL025")
