"""DAT063: the length of a batch that is a tuple or dictionary."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader

def evaluate(model, loader, criterion, device):
    total, count, correct = 0.0, 0, 0
    for batch in loader:
        {body}
    return total / count, correct / count
"""
TUPLE = """
x, y = batch
        out = model(x.to(device))
        total += criterion(out, y).item() * {length}{mark}
        correct += (out.argmax(1) == y).sum().item()
        count += {length}{mark}
""".strip()
MARK = "  # <- DAT063"

FAULTY = {
    "a tuple": HEAD.format(body=TUPLE.format(length="len(batch)", mark=MARK)),
    "a dictionary": HEAD.format(
        body="""
        batch = {k: v.to(device) for k, v in batch.items()}
        out = model(batch["image"])
        correct += (out.argmax(1) == batch["label"]).sum().item()
        count += len(batch)  # <- DAT063
""".strip()
    ),
    "moved by a map": HEAD.format(
        body="""
        ids, targets = map(lambda each: each.to(device), batch)
        total += criterion(model(ids), targets).item() * len(batch)  # <- DAT063
        count += len(targets)
""".strip()
    ),
    "enumerated": """
import torch
def train(model, train_loader, optimizer, criterion):
    seen = 0
    for step, data in enumerate(train_loader):
        inputs, labels = data
        optimizer.zero_grad()
        criterion(model(inputs), labels).backward()
        optimizer.step()
        seen += len(data)  # <- DAT063
    print(seen)
""",
    "a step of Lightning": """
import torch
import pytorch_lightning as pl
class Model(pl.LightningModule):
    def validation_step(self, batch, batch_idx):
        x, y = batch
        loss = self.criterion(self.net(x), y)
        self.log("val_loss", loss, batch_size=len(batch))  # <- DAT063
""",
    "a record": """
import torch
def parse(path):
    boxes, labels = read(path)
    return {"boxes": boxes, "labels": labels}
def count(paths):
    n_objects = 0
    for path in paths:
        objects = parse(path)
        if len(objects) == 0:  # <- DAT063
            continue
        n_objects += len(objects)  # <- DAT063
    return n_objects
""",
}

CORRECT = {
    "a part": HEAD.format(body=TUPLE.format(length="len(x)", mark="")),
    "a list of samples": HEAD.format(
        body="""
        x = torch.stack([each["x"] for each in batch])
        first = batch[0]["name"]
        y = torch.tensor([each["y"] for each in batch])
        total += criterion(model(x), y).item() * len(batch)
        count += len(batch)
""".strip()
    ),
    "zipped samples": HEAD.format(
        body="""
        x, y = zip(*batch)
        total += criterion(model(torch.stack(x)), torch.stack(y)).item() * len(batch)
        count += len(batch)
""".strip()
    ),
    "a tensor": HEAD.format(
        body="""
        batch = batch[0].to(device)
        total += criterion(model(batch), batch).item() * len(batch)
        count += len(batch)
""".strip()
    ),
    "replaced by a part": HEAD.format(
        body="""
        batch = batch["image"]
        count += len(batch)
""".strip()
    ),
    "a batch with a length": "from torchtext.data import Iterator\n"
    + HEAD.format(body=TUPLE.format(length="len(batch)", mark="")),
    "the number of parts": HEAD.format(
        body="""
        if len(batch) == 3:
            batch = batch[:2]
        x, y = batch
        print(len(batch))
        count += len(y)
""".strip()
    ),
    "a dictionary that grows": """
import torch
def count(words):
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return 1 / len(counts), torch.zeros(10) * len(counts)
def start():
    return {"a": 0, "b": 0}
def fill(words):
    table = start()
    for word in words:
        table[word] = 1
    return 2 * len(table)
""",
    "columns": """
import torch
def collate(rows):
    return {"ids": rows, "labels": rows}
for batch in DataLoader(rows, 8, collate_fn=collate):
    print(len(batch), batch["ids"].shape)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_lengths_of_tuples_and_dictionaries(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_numbers_of_samples(lint_is_clean, script):
    lint_is_clean(script, "DAT063")
