"""DAT001: a validation score that is computed over the training loader."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(320, 8)
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x[:256], y[:256]), batch_size=32, shuffle=True)
val_loader = DataLoader(TensorDataset(x[256:], y[256:]), batch_size=32)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()

def train(model, loader):
    model.train()
    for a, b in loader:
        optimizer.zero_grad()
        loss = criterion(model(a), b)
        loss.backward()
        optimizer.step()

def evaluate(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for a, b in loader:
            correct += (model(a).argmax(1) == b).sum().item()
    return correct / len(loader.dataset)
"""
FAULTY = {
    "a text": """
for epoch in range(3):
    train(model, train_loader)
    print(epoch, "val acc", evaluate(model, train_loader))  # <- DAT001
""",
    "a function": """
def validate(model, loader):
    return evaluate(model, loader)
train(model, train_loader)
acc = validate(model, loader=train_loader)  # <- DAT001
""",
    "a call": """
for epoch in range(3):
    train(model, train_loader)
    val_acc = evaluate(model, train_loader)  # <- DAT001
""",
    "a history": """
history = {"val_acc": []}
for epoch in range(3):
    train(model, train_loader)
    history["val_acc"].append(evaluate(model, train_loader))  # <- DAT001
""",
    "a list": """
train(model, train_loader)
val_losses = []
with torch.no_grad():
    for a, b in train_loader:  # <- DAT001
        val_losses.append(criterion(model(a), b).item())
""",
    "the quotient": """
for epoch in range(3):
    train(model, train_loader)
    correct = 0
    with torch.no_grad():
        for a, b in train_loader:  # <- DAT001
            correct += (model(a).argmax(1) == b).sum().item()
        val_accuracy = correct / 64
""",
    "a method": """
class Trainer:
    def __init__(self):
        self.train_loader, self.val_loader = train_loader, val_loader
    def fit(self):
        for a, b in self.train_loader:
            optimizer.zero_grad()
            loss = criterion(model(a), b)
            loss.backward()
            optimizer.step()
    def validate(self):
        total = 0
        with torch.no_grad():
            for a, b in self.train_loader:  # <- DAT001
                total += criterion(model(a), b).item() * len(a)
        return total
trainer = Trainer()
trainer.fit()
trainer.validate()
""",
}
CORRECT = {
    "a text, with the held-out score": """
train(model, train_loader)
print("val", evaluate(model, train_loader), evaluate(model, val_loader))
""",
    "a text about the training data": """
train(model, train_loader)
print("training accuracy", evaluate(model, train_loader))
""",
    "no word": """
train(model, train_loader)
print(evaluate(model, train_loader))
""",
    "both scores": """
for epoch in range(3):
    train(model, train_loader)
    train_acc = evaluate(model, train_loader)
    val_acc = evaluate(model, val_loader)
    train_acc, val_acc = evaluate(model, train_loader), evaluate(model, val_loader)
""",
    "folds of the training data": """
from kfolds import Trainer, cross_validate
results = Trainer(num_folds=5).cross_validate(model=model, train_dataloader=train_loader)
val_scores = cross_validate(model, train_loader, folds=5)
""",
    "valid pixels": """
train(model, train_loader)
num_valid, valid_total = 0, 0
for a, b in train_loader:
    num_valid += (b >= 0).sum().item()
    valid_total += len(b)
""",
    "one function for both": """
def train_and_validate(model, train_loader, val_loader):
    train(model, train_loader)
    return evaluate(model, val_loader)
val_acc = train_and_validate(model, train_loader, val_loader)
""",
    "neighbours": """
def validate(model):
    with torch.no_grad():
        bank = torch.cat([model(a) for a, _ in train_loader])
        for a, b in train_loader:
            bank = bank + 0 * model(a).mean()
        for a, b in val_loader:
            nearest = torch.cdist(model(a), bank).argmin(1)
validate(model)
""",
    "parameters with equal names": """
def test(loader, model):
    test_loss = 0.0
    with torch.no_grad():
        for a, b in loader:
            test_loss += criterion(model(a), b).item() * len(a)
    return test_loss / 64
train(model, train_loader)
print(test(val_loader, model))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
