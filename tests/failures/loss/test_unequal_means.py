"""LOS005: means over different counts that are weighted equally."""

from __future__ import annotations

import pytest

DATA = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset
lengths = [4, 5, 30, 40, 6, 7, 50, 60] * 4
rows = [torch.randint(1, 12, (n,)) for n in lengths]
def collate(rows):
    return pad_sequence(rows, batch_first=True)
loader = DataLoader(rows, batch_size=2, collate_fn=collate)
model = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
def outputs(tokens):
    return model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
"""
FAULTY = {
    "divided_by_k": """
for i, tokens in enumerate(loader):
    logits, targets = outputs(tokens)
    loss = F.cross_entropy(logits, targets, ignore_index=0) / 4  # <- LOS005
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    "class": """
class Trainer:
    accumulate = 2
    criterion = nn.CrossEntropyLoss(ignore_index=0)
    def epoch(self):
        for i, tokens in enumerate(loader, 1):
            self.micro(tokens)
            if i % self.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    def micro(self, tokens):
        loss = self.criterion(*outputs(tokens))  # <- LOS005
        loss.div(self.accumulate).backward()
Trainer().epoch()
""",
    "scaler": """
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
batches = iter(loader)
for _ in range(4):
    for _ in range(4):
        loss = F.cross_entropy(*outputs(next(batches)), ignore_index=0, label_smoothing=0.1)  # <- LOS005
        scaler.scale(loss / 4).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    "squares_over_rows": """
def ragged(rows):
    flat = torch.cat(rows).float()[:, None]
    return flat, flat * 2
loader = DataLoader(rows, batch_size=2, collate_fn=ragged)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
def train():
    for i, (a, b) in enumerate(loader):
        loss = F.mse_loss(model(a), b)  # <- LOS005
        (loss * 0.25).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
train()
""",
}
LOOP = """
for _ in range(2):
    for i, tokens in enumerate(loader):
        loss_of(tokens).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
FIXED = """
data = TensorDataset(torch.randn(70, 5), torch.randint(0, 3, (70,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(5, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
CORRECT = {
    "equal_counts": FIXED
    + """
for _ in range(3):
    for i, (a, b) in enumerate(loader):
        (F.cross_entropy(model(a), b) / 2).backward()
        if i % 2 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
""",
    "window_over_the_end_of_an_epoch": FIXED
    + """
def forever():
    while True:
        yield from loader
batches = forever()
for _ in range(6):
    for _ in range(3):
        a, b = next(batches)
        (F.cross_entropy(model(a), b) / 3).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "sums_over_the_window": """
batches = list(loader)
for start in range(0, len(batches), 4):
    window = batches[start:start + 4]
    count = sum((tokens[:, 1:] != 0).sum() for tokens in window)
    for tokens in window:
        (F.cross_entropy(*outputs(tokens), ignore_index=0, reduction="sum") / count).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "means_by_share": """
batches = iter(loader)
for _ in range(4):
    window = [next(batches) for _ in range(4)]
    counts = [int((tokens[:, 1:] != 0).sum()) for tokens in window]
    for tokens, count in zip(window, counts):
        (F.cross_entropy(*outputs(tokens), ignore_index=0) * count / sum(counts)).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "one_batch_per_update": """
for tokens in loader:
    F.cross_entropy(*outputs(tokens), ignore_index=0).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "one_sentence_each": "loader = DataLoader(rows, batch_size=1, collate_fn=collate)\n"
    "loss_of = lambda tokens: F.cross_entropy(*outputs(tokens)) / 4" + LOOP,
    "tasks_of_their_own": """
short = DataLoader([row[:4] for row in rows], batch_size=2, collate_fn=collate)
for one, other in zip(loader, short):
    F.cross_entropy(*outputs(one), ignore_index=0).backward()
    F.cross_entropy(*outputs(other), ignore_index=0).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "losses_of_one_batch": """
for tokens in loader:
    logits, targets = outputs(tokens)
    F.cross_entropy(logits, targets, ignore_index=0).backward(retain_graph=True)
    F.cross_entropy(logits[::3], targets[::3]).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "class_weights": FIXED
    + """
weight = torch.tensor([1.0, 20.0, 50.0])
loader = DataLoader(data, batch_size=4)
for i, (a, b) in enumerate(loader):
    (F.cross_entropy(model(a), b, weight=weight) / 2).backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "a_random_mask": FIXED
    + """
tokens = torch.randint(0, 3, (512, 5))
loader = DataLoader(TensorDataset(torch.randn(512, 5, 5), tokens), batch_size=64)
for i, (a, b) in enumerate(loader):
    b = b.masked_fill(torch.rand(b.shape) > 0.3, -100)
    (F.cross_entropy(model(a).transpose(1, 2), b) / 2).backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script: str):
    assert "times as much" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script: str):
    run_is_clean(DATA + script)
