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
