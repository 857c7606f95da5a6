"""CKP016: the epoch of a checkpoint that nothing uses."""

import pytest

SCRIPT = """
import torch
from torch import nn

def main(path, epochs):
    model = nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters())
    {read}
    for epoch in {loop}:
        train_epoch(model, optimizer)
"""
LOAD = """checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    """
FAULTY = {
    "printed": (
        LOAD + 'start_epoch = checkpoint["epoch"] + 1  # <- CKP016\n    print("from", start_epoch)',
        "range(epochs)",
    ),
    "get": (LOAD + 'start_epoch = checkpoint.get("epoch", 0)  # <- CKP016', "tqdm.trange(epochs)"),
    "an attribute": (LOAD + 'main.last_epoch = checkpoint["epoch"]  # <- CKP016', "range(100)"),
}
CORRECT = {
    "used": (LOAD + 'start_epoch = checkpoint["epoch"] + 1', "range(start_epoch, epochs)"),
    "subtracted": (LOAD + 'start_epoch = checkpoint["epoch"] + 1\n    left = epochs - start_epoch', "range(left)"),
    "of a model that is fine-tuned": (
        (
            'checkpoint = torch.load(path)\n    model.load_state_dict(checkpoint["model"])\n    '
            'last_epoch = checkpoint["epoch"]\n    print(last_epoch)'
        ),
        "range(epochs)",
    ),
    "another number": (LOAD + 'best = checkpoint["best"]', "range(epochs)"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_it(lint_reports, name):
    read, loop = FAULTY[name]
    lint_reports(SCRIPT.replace("{read}", read).replace("{loop}", loop))


@pytest.mark.parametrize("name", CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, name):
    read, loop = CORRECT[name]
    lint_is_clean(SCRIPT.replace("{read}", read).replace("{loop}", loop), "CKP016")
