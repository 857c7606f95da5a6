"""EVL012: the last batch for the epoch."""

import pytest

FAULTY = {
    "returned by a function that evaluates": """
def validate(model, val_loader):
    for x, y in val_loader:
        loss = criterion(model(x), y)
    return loss.item()  # <- EVL012
""",
    "given to a scheduler": """
for epoch in range(9):
    for x, y in val_loader:
        val_loss = criterion(model(x), y)
    scheduler.step(val_loss)  # <- EVL012
""",
    "compared with the best accuracy": """
best_acc = 0.0
for epoch in range(9):
    for x, y in val_loader:
        acc = (model(x).argmax(1) == y).float().mean().item()
        print(acc)
    if acc > best_acc:  # <- EVL012
        best_acc = acc
""",
}

FAULTY["a total that is set to zero in the loop"] = """
for epoch in range(9):
    for x, y in val_loader:
        val_total = 0  # <- EVL012
        loss = criterion(model(x), y)
        val_total += loss.item()
    print(f"{epoch}: {val_total / len(val_loader):.3f}")
"""
FAULTY["counted after the loop"] = """
correct, total = 0, 0
with torch.no_grad():
    for x, y in val_loader:
        outputs = model(x)
        predicted = outputs.argmax(1)
    correct += (predicted == y).sum().item()  # <- EVL012
    total += y.size(0)
print(correct / total)
"""
FAULTY["counted after the loop, in a function"] = """
def validate(model, val_loader):
    hits = 0
    for i, batch in enumerate(val_loader):
        out = model(batch["x"])
    hits += out.argmax(-1).eq(batch["y"]).sum()  # <- EVL012
    return hits / len(val_loader.dataset)
"""
CORRECT = {
    "counted in the loop": """
correct, batches = 0, 0
for i, (x, y) in enumerate(val_loader):
    predicted = model(x).argmax(1)
    correct += (predicted == y).sum().item()
batches += i + 1
""",
    "counted after they are collected": """
predictions, labels, correct = [], [], 0
for x, y in val_loader:
    predictions.append(model(x).argmax(1))
    labels.append(y)
correct += (torch.cat(predictions) == torch.cat(labels)).sum()
""",
    "a count for each loader": """
for val_loader in loaders:
    for x, y in val_loader:
        hits = hits + (model(x).argmax(1) == y).sum()
    total += hits
    groups += (name == "test")
""",
    "totals of a batch": """
for epoch in range(9):
    total = 0
    for x, y in val_loader:
        inner = 0
        for head in heads:
            inner += criterion(head(x), y).item()
        batch = 0
        batch += criterion(model(x), y).item()
        total += inner + batch
    print(total / len(val_loader), batch)
""",
    "collected": """
def validate(model, val_loader):
    losses = []
    for x, y in val_loader:
        loss = criterion(model(x), y)
        losses.append(loss.item())
    return sum(losses) / len(losses)
""",
    "the last training loss is printed": """
for epoch in range(9):
    for x, y in loader:
        loss = criterion(model(x), y)
        loss.backward()
    print(epoch, loss.item())
""",
    "one batch": """
val_loader = DataLoader(val_set, batch_size=len(val_set))
for epoch in range(9):
    for x, y in val_loader:
        val_loss = criterion(model(x), y)
    scheduler.step(val_loss)
""",
    "a running mean": """
for epoch in range(9):
    for x, y in val_loader:
        val_loss = meter.update(criterion(model(x), y))
    scheduler.step(val_loss)
""",
}

REPLACED = {
    "a dictionary": """
def validate(model, val_loader):
    record = dict(right=0, seen=0)
    for x, y in val_loader:
        out = model(x)
        record.update(right=out.argmax(1).eq(y).sum().item(), seen=len(y))  # <- EVL012
    return record["right"] / record["seen"]
""",
    "a dictionary that is made": """
for x, y in val_loader:
    record = {"right": (model(x).argmax(1) == y).sum().item(), "seen": len(y)}  # <- EVL012
print("accuracy", 100 * record["right"] / record["seen"])
""",
    "an item": """
totals = {}
for x, y in val_loader:
    totals["right"] = (model(x).argmax(1) == y).sum().item()  # <- EVL012
print(totals["right"] / len(val_loader.dataset))
""",
    "a variable": """
right = seen = 0
for x, y in val_loader:
    right = (model(x).argmax(1) == y).sum().item()  # <- EVL012
    seen += len(y)
print(f"{right / seen:.3f}")
""",
    "an attribute, batches cut by hand": """
class Trainer:
    def test(self):
        for x, y in zip(self.x.split(50), self.y.split(50)):
            loss = self.model(x).sum()
            self.right, self.seen = (self.model(x).argmax(1) == y).sum(), len(y)  # <- EVL012
        return self.right / self.seen
""",
}
ADDED = {
    "a counter": """
record = Counter()
for x, y in val_loader:
    record.update(right=(model(x).argmax(1) == y).sum().item(), seen=len(y))
print(record["right"] / record["seen"])
""",
    "an object": """
record = Meter()
for x, y in val_loader:
    record.update(right=(model(x).argmax(1) == y).sum().item(), seen=len(y))
print(record["right"] / record["seen"])
""",
    "earlier values": """
record = dict(right=0, seen=0)
for x, y in val_loader:
    right = (model(x).argmax(1) == y).sum().item()
    record.update(right=record["right"] + right, seen=record["seen"] + len(y))
print(record["right"] / record["seen"])
""",
    "added to another total": """
total = 0
for x, y in val_loader:
    right = (model(x).argmax(1) == y).sum().item()
    total += right
print(total / len(val_loader.dataset), right / len(y))
""",
    "training": """
for x, y in loader:
    right = (model(x).argmax(1) == y).sum().item()
    criterion(model(x), y).backward()
print("last batch", right / len(y))
""",
    "each batch by itself": """
for x, y in val_loader:
    right = (model(x).argmax(1) == y).sum().item()
    print(right / len(y))
""",
}


@pytest.mark.parametrize("script", REPLACED.values(), ids=REPLACED)
def test_lint_reports_counts_that_each_batch_replaces(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", ADDED.values(), ids=ADDED)
def test_lint_accepts_counts_that_grow(lint_is_clean, script):
    lint_is_clean(script, "EVL012")


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(script)


COUNTS_HEAD = """
from collections import Counter
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from sklearn.metrics import f1_score
data = TensorDataset(torch.randn(90, 4), torch.randint(0, 3, (90,)))
loader, val_loader = DataLoader(data, batch_size=16), DataLoader(data, batch_size=32)
model, criterion = nn.Linear(4, 3), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
COUNTS_PER_BATCH = {
    "tensors of classes": """
@torch.no_grad()
def evaluate(net, loader):
    net.eval()
    for image, mask in loader:
        tp, fp, fn = (torch.zeros(3) for _ in range(3))  # <- EVL012
        pred = net(image).argmax(dim=1)
        for c in range(3):
            tp[c] += ((pred == c) & (mask == c)).sum()
            fp[c] += ((pred == c) & (mask != c)).sum()
            fn[c] += ((pred != c) & (mask == c)).sum()
    return tp / (tp + fp + fn).clamp(min=1)
""",
    "two numbers": """
def accuracy(model, val_loader):
    with torch.no_grad():
        for x, y in val_loader:
            hits, seen = 0, 0  # <- EVL012
            for guess, truth in zip(model(x).argmax(1), y):
                if guess == truth:
                    hits += 1
                seen += 1
    return hits / seen
""",
    "a confusion matrix": """
def confusion(model):
    for x, y in val_loader:
        matrix = np.zeros((3, 3))  # <- EVL012
        for p, t in zip(model(x).argmax(1), y):
            matrix[t, p] += 1
    diagonal = np.diag(matrix) / matrix.sum(0)
    return diagonal
""",
    "lists of predictions": """
class Validator:
    def run(self, model):
        for step, (x, y) in enumerate(val_loader):
            guesses, truths = [], []  # <- EVL012
            guesses.extend(model(x).argmax(1).tolist())
            truths.extend(y.tolist())
        return f1_score(truths, guesses, average="macro")
""",
    "a dictionary, printed per batch": """
def validate(model):
    for x, y in val_loader:
        with torch.no_grad():
            counts = {"right": 0, "seen": 0}  # <- EVL012
            counts["right"] += (model(x).argmax(1) == y).sum().item()
            counts["seen"] += len(y)
            print(counts["right"])
    return counts["right"] / counts["seen"]
""",
    "slices of a tensor": """
x, y = data.tensors
with torch.no_grad():
    for start in range(0, len(x), 32):
        union = torch.zeros(3)  # <- EVL012
        overlap = torch.zeros(3)
        pred = model(x[start:start + 32]).argmax(1)
        for c in range(3):
            overlap[c] += ((pred == c) & (y[start:start + 32] == c)).sum()
            union[c] += ((pred == c) | (y[start:start + 32] == c)).sum()
print((overlap / union).mean())
""",
}
COUNTS_ON_PURPOSE = {
    "before the loop": """
def evaluate(net, loader):
    tp, fn = torch.zeros(3), torch.zeros(3)
    for image, mask in loader:
        pred = net(image).argmax(dim=1)
        for c in range(3):
            tp[c] += ((pred == c) & (mask == c)).sum()
            fn[c] += ((pred != c) & (mask == c)).sum()
    return tp / (tp + fn)
""",
    "collected": """
def evaluate(net, loader):
    scores = []
    for image, mask in loader:
        tp, fn = torch.zeros(3), torch.zeros(3)
        pred = net(image).argmax(dim=1)
        for c in range(3):
            tp[c] += ((pred == c) & (mask == c)).sum()
            fn[c] += ((pred != c) & (mask == c)).sum()
        scores.append((tp / (tp + fn)).mean())
    print("last batch", tp / (tp + fn))
    return sum(scores) / len(scores)
""",
    "added to a total": """
total = 0
for x, y in val_loader:
    right = 0
    for p, t in zip(model(x).argmax(1), y):
        right += int(p == t)
    total += right
print(total / len(data), right / len(y))
""",
    "printed per batch, and once more": """
for x, y in val_loader:
    right = 0
    right += (model(x).argmax(1) == y).sum().item()
    print(f"batch accuracy {right / len(y)}")
print(f"last batch {right / len(y)}")
""",
    "a loss of several heads": """
for x, y in loader:
    loss = 0
    for head in (model, model):
        loss += criterion(head(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
""",
    "an ensemble": """
outputs = []
for x, y in val_loader:
    mean = torch.zeros(len(x), 3)
    for net in (model, model):
        mean += net(x).softmax(1)
    outputs.append(mean / 2)
print(torch.cat(outputs), mean[0])
""",
    "an ensemble of the last batch": """
for x, y in val_loader:
    mean = torch.zeros(len(x), 3)
    for net in (model, model):
        mean += net(x).softmax(1)
image = mean[0]
""",
    "loaders": """
for name, loader in {"val": val_loader, "test": loader}.items():
    right = 0
    for x, y in loader:
        right += (model(x).argmax(1) == y).sum().item()
    print(name, right / len(data))
""",
    "epochs": """
for epoch in range(3):
    right, seen = 0, 0
    for x, y in val_loader:
        right += (model(x).argmax(1) == y).sum().item()
        seen += len(y)
    print(right / seen)
""",
    "set again after the loop": """
for x, y in loader:
    right = 0
    right += (model(x).argmax(1) == y).sum().item()
    print(right / len(y))
right = 0
for x, y in val_loader:
    right += (model(x).argmax(1) == y).sum().item()
print(right / len(data))
""",
    "samples to show": """
for x, y in val_loader:
    shown = []
    for row in x[:4]:
        shown.append(row)
grid = torch.stack(shown)
""",
}


@pytest.mark.parametrize("script", COUNTS_PER_BATCH.values(), ids=COUNTS_PER_BATCH)
def test_lint_reports_counts_that_start_again_in_each_batch(lint_reports, script):
    lint_reports(COUNTS_HEAD + script)


@pytest.mark.parametrize("script", COUNTS_ON_PURPOSE.values(), ids=COUNTS_ON_PURPOSE)
def test_lint_accepts_counts_of_single_batches(lint_is_clean, script):
    lint_is_clean(COUNTS_HEAD + script, "EVL012")


PRINTED = {
    "collected, and the wrong one printed": """
def evaluate(model, val_loader):
    losses = []
    with torch.no_grad():
        for x, y in val_loader:
            val_loss = criterion(model(x), y)
            losses.append(val_loss.item())
    print("loss {:.4f}".format(val_loss))  # <- EVL012
    return sum(losses) / len(losses)
""",
    "in the loop over epochs": """
for epoch in range(3):
    model.eval()
    for x, y in test_loader:
        loss = criterion(model(x), y)
        total += loss.item()
    print(f"epoch {epoch}: test loss {loss.item():.3f}")  # <- EVL012
""",
    "logged": """
def validate(model, loader, writer, epoch):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
    writer.add_scalar("loss/val", loss.item(), epoch)  # <- EVL012
""",
    "an accuracy": """
for x, y in valid_loader:
    acc = (model(x).argmax(1) == y).float().mean()
    accs.append(acc.item())
print("validation accuracy", acc)  # <- EVL012
""",
}
PRINTED_FINE = {
    "training": """
for epoch in range(3):
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
""",
    "the mean under the same name": """
for x, y in val_loader:
    loss = criterion(model(x), y)
    total += loss.item()
loss = total / len(val_loader)
print("val", loss)
""",
    "printed for each batch": """
for x, y in val_loader:
    loss = criterion(model(x), y)
    print("val", loss.item())
""",
    "the next loop": """
for x, y in val_loader:
    loss = criterion(model(x), y)
    total += loss.item()
for x, y in test_loader:
    loss = criterion(model(x), y)
    print("test", loss.item())
""",
    "a sum": """
for x, y in val_loader:
    loss = loss + criterion(model(x), y)
print("val", loss.item() / len(val_loader))
""",
    "an output": """
for x, y in test_loader:
    out = model(x)
print("last", out.shape)
""",
    "a single batch": """
test_loader = DataLoader(data, batch_size=len(data))
for x, y in test_loader:
    loss = criterion(model(x), y)
print("test", loss.item())
""",
}


@pytest.mark.parametrize("script", PRINTED.values(), ids=PRINTED)
def test_lint_reports_printed_values_of_the_last_batch(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", PRINTED_FINE.values(), ids=PRINTED_FINE)
def test_lint_accepts_other_printed_values(lint_is_clean, script):
    lint_is_clean(script, "EVL012")


LOGGED = {
    "a curve of the training": """
for epoch in range(9):
    for x, y in train_loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    writer.add_scalar("Loss/train", loss.item(), epoch)  # <- EVL012
""",
    "a limited evaluation behind a progress bar": """
for epoch in range(9):
    with torch.no_grad():
        bar = tqdm(val_loader)
        for i, (x, y) in enumerate(bar):
            if i == 300:
                break
            loss = criterion(model(x), y).item() / batch_size
            losses.append(loss)
    writer.add_scalar("val", loss, global_step=epoch)  # <- EVL012
""",
    "one name for two loops": """
for epoch in range(9):
    for x, y in train_loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    writer.add_scalar("train", loss, epoch)  # <- EVL012
    total = 0.0
    for x, y in val_loader:
        loss = criterion(model(x), y)
        total += loss.item()
    writer.add_scalar("val", total / len(val_loader), epoch)
""",
}
NOT_LOGGED = {
    "a point per step": """
for epoch in range(9):
    for x, y in train_loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.add_scalar("train", loss.item(), step)
""",
    "printed": """
for epoch in range(9):
    for x, y in train_loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
""",
    "a mean": """
for epoch in range(9):
    losses = []
    for x, y in train_loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    loss = sum(losses) / len(losses)
    writer.add_scalar("train", loss, epoch)
""",
    "a search that ends": """
for epoch in range(9):
    for i, (x, y) in enumerate(val_loader):
        loss = criterion(model(x), y)
        if loss < 0.1:
            break
    writer.add_scalar("val", loss, epoch)
""",
    "one batch": """
for epoch in range(9):
    for i, (x, y) in enumerate(val_loader):
        loss = criterion(model(x), y)
        if i == 0:
            break
    writer.add_scalar("val", loss, epoch)
""",
}

LOGGED["a list with one loss per epoch"] = """
losses = []
for epoch in range(9):
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    losses.append(loss.item())  # <- EVL012
plt.plot(losses)
"""
NOT_LOGGED["a list with the mean loss per epoch"] = """
losses = []
for epoch in range(9):
    total = 0.0
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    losses.append(total / len(train_loader))
"""
JUDGED_HEAD = """
model.eval()
outputs, labels = [], []
with torch.no_grad():
    for x, y in test_loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        probabilities = F.softmax(out, dim=1)
        pred = out.argmax(1)
        total += criterion(out, y).item()
"""
JUDGED = {
    "share of right ones": 'print("accuracy", (pred == y).float().mean().item())',
    "report": "print(classification_report(y.cpu(), pred.cpu()))",
    "score that is returned": "f1 = f1_score(y.cpu().numpy(), pred.cpu().numpy(), average='macro')",
    "mean confidence": "confidences.append(probabilities.max(dim=1).values.mean())",
}
JUDGED_FINE = {
    "another batch": "x, y = next(iter(test_loader))\npred = model(x).argmax(1)\nprint((pred == y).float().mean())",
    "joined before": "pred, y = torch.cat(outputs), torch.cat(labels)\nprint((pred == y).float().mean())",
    "shapes": "print(pred.shape == y.shape)",
    "one of them": "print(classification_report(all_labels, pred))",
    "figures of one batch": "imshow(x.mean(0))",
    "other loop": "for x, y in other:\n    pred = model(x).argmax(1)\n    print((pred == y).float().mean())",
}


@pytest.mark.parametrize("after", JUDGED.values(), ids=JUDGED)
def test_lint_reports_metrics_of_the_last_batch(lint_reports, after):
    lint_reports(f"{JUDGED_HEAD}{after}  # <- EVL012\n")


@pytest.mark.parametrize("after", JUDGED_FINE.values(), ids=JUDGED_FINE)
def test_lint_accepts_other_metrics_after_a_loop(lint_is_clean, after):
    lint_is_clean(f"{JUDGED_HEAD}{after}\n", "EVL012")


@pytest.mark.parametrize("line", ["outputs.append(pred)", "labels += y.tolist()\n        pred += [1]", "break"])
def test_lint_accepts_loops_that_collect_or_end_early(lint_is_clean, line):
    lint_is_clean(f"{JUDGED_HEAD}        {line}\nprint((pred == y).float().mean())\n", "EVL012")


@pytest.mark.parametrize("script", LOGGED.values(), ids=LOGGED)
def test_lint_reports_curves_of_last_batches(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", NOT_LOGGED.values(), ids=NOT_LOGGED)
def test_lint_accepts_other_curves(lint_is_clean, script):
    lint_is_clean(script, "EVL012")


def test_lint_ends_on_a_progress_bar_of_the_same_name(lint_codes):
    script = LOGGED["a limited evaluation behind a progress bar"].replace("tqdm(val_loader)", "tqdm(\n            bar)")
    assert "EVL012" not in lint_codes(script)
