"""DAT050: random splits without a seed in programs that resume."""

import pytest

HEAD = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from sklearn.model_selection import train_test_split

x, y = torch.randn(200, 8), torch.randn(200, 1)
data = TensorDataset(x, y)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters())

def fit(part, start=0):
    for epoch in range(start, 5):
        for a, b in DataLoader(part, 20, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
        torch.save({"model": model.state_dict(), "opt": optimizer.state_dict(), "epoch": epoch}, "last.pt")
"""
RESUME = """
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["opt"])
"""
FAULTY = {
    "before the checkpoint is loaded": "train_set, val_set = random_split(data, [160, 40])  # <- DAT050"
    + RESUME
    + "fit(train_set)\n",
    "an option of the command line": """
def main(args):
    x_train, x_val, y_train, y_val = train_test_split(x, y, test_size=0.2)  # <- DAT050
    if args.resume:
        saved = torch.load(args.resume)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["opt"])
    fit(TensorDataset(x_train, y_train))
""",
}
CORRECT = {
    "a generator": "train_set, val_set = random_split(data, [160, 40], generator=torch.Generator().manual_seed(1))"
    + RESUME,
    "a seed": "torch.manual_seed(0)\ntrain_set, val_set = random_split(data, [160, 40])" + RESUME,
    "no resume": """
train_set, val_set = random_split(data, [160, 40])
fit(train_set)
model.load_state_dict(torch.load("last.pt")["model"])
""",
    "the indices are stored": RESUME
    + """
    train_indices = saved["indices"]
train_set, val_set = random_split(data, [160, 40])
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_splits_without_a_seed(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_fixed_splits(lint_is_clean, script):
    lint_is_clean(HEAD + script, "DAT050")
