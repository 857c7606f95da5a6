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
    "an attribute": (LOAD + 'epochs.last_epoch = checkpoint["epoch"]  # <- CKP016', "range(100)"),
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


def test_lint_reports_an_attribute_of_a_trainer(lint_reports):
    lint_reports("""
import torch

class Trainer:
    def load(self, path):
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.start_epoch = state["epoch"]  # <- CKP016
    def train(self):
        for epoch in range(self.epochs):
            self.train_epoch()
""")


def test_lint_ignores_a_loop_of_another_function(lint_is_clean):
    lint_is_clean(
        """
import torch

def resume(args, model, optimizer):
    checkpoint = torch.load(args.resume)
    args.start_epoch = checkpoint["epoch"]
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])

def warm_up(model, optimizer):
    for step in range(10):
        train_step(model, optimizer)
""",
        "CKP016",
    )
