"""DAT001: a score that is called held out, while nothing reads the held-out part."""

import pytest

HEAD = """
import torch
from torch import nn
x, y = torch.randn(100, 8), torch.randint(0, 2, (100,))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(a, b):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(a), b).backward()
    optimizer.step()

def accuracy(a, b):
    with torch.no_grad():
        return (model(a).argmax(1) == b).float().mean()
"""
MASKS = """
train_mask = torch.arange(100) < 60
test_mask = ~train_mask
train(x[train_mask], y[train_mask])
"""
FAULTY = {
    "masks": MASKS + "out = model(x).argmax(1)\nte = (out[train_mask] == y[train_mask]).float().mean()  # <- DAT001\n",
    "indices": """
order = torch.randperm(100)
train_idx, test_idx = order[:60], order[60:]
train(x[train_idx], y[train_idx])
test_acc = accuracy(x[train_idx], y[train_idx])  # <- DAT001
""",
    "arrays": """
x_train, y_train, x_test, y_test = x[:60], y[:60], x[60:], y[60:]
train(x_train, y_train)
test_loss = nn.functional.cross_entropy(model(x_train), y_train)  # <- DAT001
""",
}
CORRECT = {
    "one function for both phases": """
train_data_sampler, valid_data_sampler = None, None
if distributed:
    train_data_sampler, valid_data_sampler = sampler(train_data), sampler(valid_data)
train_loader = torch.utils.data.DataLoader(train_data, sampler=train_data_sampler)
valid_loader = torch.utils.data.DataLoader(valid_data)
def train(phase="train"):
    total = 0
    for a, b in train_loader if phase == "train" else valid_loader:
        loss = nn.functional.cross_entropy(model(a), b)
        if phase == "train":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total
for epoch in range(3):
    train_epoch_loss = train(phase="train")
    valid_epoch_loss = train(phase="valid")
""",
    "both parts": MASKS
    + "train_acc = accuracy(x[train_mask], y[train_mask])\ntest_acc = accuracy(x[test_mask], y[test_mask])\n",
    "only the training part is judged": MASKS + "train_acc = accuracy(x[train_mask], y[train_mask])\n",
    "a difference": MASKS + "train_acc = accuracy(x[train_mask], y[train_mask])\n"
    "test_gap = accuracy(x[test_mask], y[test_mask]) - train_acc\n",
    "another name": """
x_train, y_train, x_test, y_test = x[:60], y[:60], x[60:], y[60:]
train(x_train, y_train)
acc = accuracy(x_train, y_train)
""",
    "read elsewhere": MASKS
    + "test_acc = accuracy(x[train_mask], y[train_mask])\nprint(accuracy(x[test_mask], y[test_mask]))\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_scores_of_training_data(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT001")
