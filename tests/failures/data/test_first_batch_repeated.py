"""DAT012: every step uses the first batch."""

import pytest

HEAD = """
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=False)
"""

FAULTY = {
    "a while loop": """
step = 0
while step < 16:
    a, b = next(iter(loader))  # <- DAT012
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
    step += 1
""",
    "a loader in each step": """
def sample_batch(dataset):
    return next(iter(DataLoader(dataset, batch_size=16)))  # <- DAT012
dataset = TensorDataset(x, y)
for step in range(16):
    a, b = sample_batch(dataset)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(a), b)
    loss.backward()
    optimizer.step()
""",
    "in a function": """
def train_step(model, loader, optimizer):
    a, b = next(iter(loader))  # <- DAT012
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(a), b)
    loss.backward()
    optimizer.step()
for _ in range(16):
    train_step(model, loader, optimizer)
""",
    "an iterator in each step": """
for step in range(16):
    batches = iter(loader)  # <- DAT012
    a, b = next(batches)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
}

CORRECT = {
    "one batch on purpose": """
a, b = next(iter(loader))
for step in range(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
    "one iterator": """
batches = iter(loader)
for step in range(9):
    a, b = next(batches)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
    "a validation batch in each epoch": """
train_loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
for epoch in range(13):
    for a, b in train_loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
    a, b = next(iter(loader))
    with torch.no_grad():
        error = nn.functional.mse_loss(model(a), b)
""",
    "a shuffling loader": """
shuffling = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
for step in range(16):
    a, b = next(iter(shuffling))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
    "a new pass after the last batch": """
batches = iter(loader)
for step in range(24):
    try:
        a, b = next(batches)
    except StopIteration:
        batches = iter(loader)
        a, b = next(iter(loader))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
    "all samples": """
whole = DataLoader(TensorDataset(x, y), batch_size=len(x))
for step in range(16):
    a, b = next(iter(whole))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
    "new samples at each index": """
class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        sample = torch.randn(8)
        return sample, sample.sum(0, keepdim=True)
noise = DataLoader(Noise(), batch_size=16)
for step in range(11):
    a, b = next(iter(noise))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(a), b).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
