"""DAT009: a return inside the batch loop."""

from __future__ import annotations

import pytest

HEAD = """
import itertools
import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm
data = make_data()
loader = DataLoader(data, batch_size=32, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def update(x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()
"""

FAULTY = {
    "what a global loader gives": """
def train():
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()  # <- DAT009
for epoch in range(5):
    train()
""",
    "sums, numbers and a bar": """
def train(net, batches, opt, epoch):
    net.train()
    total, seen = 0.0, 0
    for i, (x, y) in enumerate(tqdm(batches)):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(x)
        seen += len(x)
        if i % 10 == 0:
            print(epoch, i, loss.item())
        return total / seen  # <- DAT009
for epoch in range(5):
    train(model, loader, optimizer, epoch)
""",
    "a class, epochs within": """
class Trainer:
    def __init__(self, model, data):
        self.model, self.history = model, []
        self.loader = DataLoader(data, 64, shuffle=True)
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler()

    def fit(self, epochs):
        for epoch in range(epochs):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                with torch.autocast("cuda", torch.float16):
                    loss = nn.functional.cross_entropy(self.model(x), y)
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.history.append(loss.item())
                return self.history  # <- DAT009
            print(epoch)

Trainer(model, data).fit(10)
""",
    "accumulated under Accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(gradient_accumulation_steps=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
def train():
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            return loss  # <- DAT009
train()
""",
    "a step in a helper": """
def epoch():
    losses = []
    for x, y in loader:
        losses.append(update(x, y))
        return sum(losses) / len(losses)  # <- DAT009
epoch()
""",
}

CORRECT = {
    "behind the loop": """
def train():
    for x, y in loader:
        loss = update(x, y)
    return loss
train()
""",
    "one batch, said so": """
def train():
    x, y = next(iter(loader))
    return update(x, y)
train()
""",
    "break at a limit": """
def train(limit):
    for i, (x, y) in enumerate(loader):
        loss = update(x, y)
        if i == limit:
            break
    return loss
train(3)
""",
    "a break in the first iteration": """
def train():
    for x, y in loader:
        loss = update(x, y)
        break
    return loss
train()
""",
    "a return under a condition": """
def train():
    for x, y in loader:
        loss = update(x, y)
        if loss > 100:
            return None
    return loss
train()
""",
    "a return in all branches but one": """
def train(limit):
    for i, (x, y) in enumerate(loader):
        loss = update(x, y)
        if i < limit:
            continue
        return loss
train(4)
""",
    "a generator": """
def train():
    for x, y in loader:
        yield update(x, y)
        return
list(train())
""",
    "the first batch that is not skipped": """
def train():
    for x, y in loader:
        if len(y.unique()) < 2:
            continue
        return update(x, y)
train()
""",
    "an empty loader is thought of": """
def one_update():
    for x, y in loader:
        loss = update(x, y)
        return loss
    raise ValueError("no data")
one_update()
""",
    "or by else": """
def one_update():
    for x, y in loader:
        loss = update(x, y)
        return loss
    else:
        raise ValueError("no data")
one_update()
""",
    "one batch that is overfitted": """
def overfit(steps):
    for x, y in loader:
        for step in range(steps):
            loss = update(x, y)
        return loss
overfit(100)
""",
    "all data in one batch": """
full_batch = DataLoader(data, batch_size=len(data))
def train():
    for x, y in full_batch:
        loss = update(x, y)
        return loss
for epoch in range(100):
    train()
""",
    "an iterator that is reused": """
batches = iter(loader)
def train():
    for x, y in batches:
        loss = update(x, y)
        return loss
for step in range(100):
    train()
""",
    "without end": """
batches = itertools.cycle(DataLoader(data, batch_size=32))
def train():
    for x, y in batches:
        loss = update(x, y)
        return loss
for step in range(100):
    train()
""",
    "an endless loader without islice": """
def endless(loader):
    while True:
        for batch in loader:
            yield batch
batches = endless(loader)
def train():
    for x, y in batches:
        loss = update(x, y)
        return loss
for step in range(100):
    train()
""",
    "a dry run": """
def train(dry):
    if dry:
        for x, y in loader:
            loss = update(x, y)
            return loss
    for x, y in loader:
        loss = update(x, y)
    return loss
train(False)
""",
    "a look at one batch": """
def shape():
    for x, y in loader:
        model(x)
        return x.shape
shape()
for x, y in loader:
    update(x, y)
""",
    "until it fits into memory": """
def train():
    for x, y in loader:
        try:
            return update(x, y)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
train()
""",
    "a closure within the loop": """
def train():
    for x, y in loader:
        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss
        optimizer.step(closure)
train()
""",
}


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_faulty_scripts(lint_reports, name):
    lint_reports(HEAD + FAULTY[name])


@pytest.mark.parametrize("name", CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, name):
    lint_is_clean(HEAD + CORRECT[name])


def test_the_fix_moves_the_return_after_the_loop(lint_reports):
    (found,) = lint_reports(HEAD + FAULTY["a step in a helper"], fixes=True)
    assert found.autofix.description == "Move the return after the loop"
    (found,) = lint_reports(HEAD + FAULTY["a class, epochs within"], fixes=False)
