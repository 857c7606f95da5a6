"""EVL009: sums over batches that are not reset in each epoch."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm
import torchmetrics

train = DataLoader(data, batch_size=16, shuffle=True)
held_out = DataLoader(other, batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def update(a, b):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(a), b)
    loss.backward()
    optimizer.step()
    return loss
"""

BROKEN = {
    "a running loss": """
running = 0.0
for epoch in range(10):
    for a, b in train:
        running += update(a, b).item()
    print(f"epoch {epoch}: {running / len(train):.3f}")  # <- EVL009
""",
    "hits over the dataset": """
def evaluate(epochs):
    correct = 0
    for epoch in range(epochs):
        for a, b in train:
            update(a, b)
        with torch.no_grad():
            for a, b in tqdm(held_out, desc="held out"):
                prediction = model(a).argmax(1)
                correct += (prediction == b).sum().item()
        accuracy = 100.0 * correct / len(held_out.dataset)  # <- EVL009
        print(accuracy)
""",
    "samples times means, in a while": """
class Fit:
    def run(self):
        total, epoch = 0.0, 0
        while epoch < 5:
            for i, (a, b) in enumerate(self.loader):
                loss = update(a, b)
                total += loss.item() * len(a)
            self.log("loss", total / len(self.loader.dataset))  # <- EVL009
            epoch += 1
""",
    "hits as a tensor": """
hits = torch.zeros(())
for epoch in range(10):
    for a, b in train:
        update(a, b)
        hits += model(a).argmax(1).eq(b).sum()
    print(hits.item() / len(train.dataset))  # <- EVL009
""",
    "a metric of torchmetrics": """
accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=2)
for epoch in range(10):
    for a, b in held_out:
        accuracy.update(model(a), b)
    print(accuracy.compute())  # <- EVL009
""",
    "a metric that is called": """
mean = torchmetrics.classification.MulticlassF1Score(2)
for epoch in range(10):
    for a, b in held_out:
        mean(model(a), b)
    print(epoch, mean.compute().item())  # <- EVL009
""",
}

CORRECT = {
    "set to zero in every epoch": """
for epoch in range(10):
    running, correct = 0.0, 0
    for a, b in train:
        running += update(a, b).item()
        correct += (model(a).argmax(1) == b).sum().item()
    print(running / len(train), correct / len(train.dataset))
""",
    "set to zero at its end": """
running = 0.0
for epoch in range(10):
    for a, b in train:
        running += update(a, b).item()
    print(running / len(train))
    running = 0.0
""",
    "a count that is not reset either": """
correct = total = 0
for epoch in range(10):
    for a, b in train:
        correct += (model(a).argmax(1) == b).sum().item()
        total += len(b)
    print(correct / total)
""",
    "also divided by the epochs": """
running = 0.0
for epoch in range(10):
    for a, b in train:
        running += update(a, b).item()
    print(running / (len(train) * (epoch + 1)), running / (epoch + 1) / len(train.dataset[0]))
""",
    "once, after all epochs": """
running = 0.0
for epoch in range(10):
    for a, b in train:
        running += update(a, b).item()
print(running / len(train) / 10)
""",
    "one pass": """
correct = 0
for a, b in held_out:
    correct += (model(a).argmax(1) == b).sum().item()
print(correct / len(held_out.dataset))
""",
    "another loader in every iteration": """
correct = 0
for loader in (train, held_out):
    for a, b in loader:
        correct += (model(a).argmax(1) == b).sum().item()
    print(correct / len(loader.dataset))
""",
    "folds of one dataset": """
correct = 0
for fold in range(5):
    fold_loader = DataLoader(data[fold], batch_size=16)
    for a, b in fold_loader:
        correct += (model(a).argmax(1) == b).sum().item()
    print(correct / len(data), correct / len(fold_loader))
""",
    "progress in updates": """
steps = 0
for epoch in range(10):
    for a, b in train:
        update(a, b)
        steps += 1
    print(steps / len(train))
""",
    "a function for each epoch": """
def run(loader):
    total = 0.0
    for a, b in loader:
        total += update(a, b).item()
    return total / len(loader)
for epoch in range(10):
    print(run(train))
""",
    "a metric that is reset": """
accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=2)
for epoch in range(10):
    for a, b in held_out:
        accuracy.update(model(a), b)
    print(accuracy.compute())
    accuracy.reset()
""",
    "a metric of all epochs": """
losses = torchmetrics.MeanMetric()
for epoch in range(10):
    for a, b in held_out:
        losses.update(update(a, b))
print(losses.compute())
""",
    "a metric that is passed on": """
accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=2)
for epoch in range(10):
    for a, b in held_out:
        accuracy.update(model(a), b)
    print(accuracy.compute())
    reset_metric(accuracy)
""",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_lint_reports_it(lint_reports, script):
    assert "is never reset" in lint_reports(HEAD + script)[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(lint_is_clean, script):
    lint_is_clean(HEAD + script, "EVL009")


def test_fix_resets_the_sum_in_every_epoch(lint_reports):
    (found,) = lint_reports(HEAD + BROKEN["a running loss"], fixes=True)
    assert found.autofix is not None
