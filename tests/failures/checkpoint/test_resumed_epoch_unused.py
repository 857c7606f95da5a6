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


CALLED = """
import torch

def load_model(args, model, optimizer):
    if args.resume:
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        args.start_epoch = checkpoint["epoch"] + 1  # <- CKP016
        print("resumed at", args.start_epoch)

def main(args, model, optimizer):
    load_model(args=args, model=model, optimizer=optimizer)
    for epoch in range(args.epochs):
        train_one_epoch(model, optimizer)
"""


def test_lint_reports_options_that_a_function_sets(lint_reports):
    lint_reports(CALLED)


@pytest.mark.parametrize(
    "changes",
    [
        {"range(args.epochs)": "range(args.start_epoch, args.epochs)"},
        {"range(args.epochs)": "range(args.epochs - args.start_epoch)"},
        {"train_one_epoch(model": "train_one_epoch(epoch + args.start_epoch, model"},
        {"    load_model(args=args, model=model, optimizer=optimizer)\n": ""},
        {"        optimizer.load_state": "        # optimizer.load_state"},
    ],
)
def test_lint_ignores_options_that_are_used(lint_is_clean, changes):
    script = CALLED
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    lint_is_clean(script, "CKP016")


REPEATED = """
import torch

def main(model, optimizer, path, epochs):
    start_epoch = 0
    if path:
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_epoch = checkpoint["epoch"]
    for epoch in range(start_epoch, epochs):
        train_epoch(model, optimizer)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "last.pt")
"""
SAVED = '"epoch": epoch}, "last.pt")'
AGAIN = {
    "plain": {},
    "a loop over batches": {
        "        train_epoch(model, optimizer)": "        for x in loader:\n            model(x).sum().backward()"
    },
    "an interval": {"        torch.save": "        if epoch % 5 == 0:\n            torch.save"},
}
NOT_AGAIN = {
    "the next one is loaded": {'checkpoint["epoch"]\n': 'checkpoint["epoch"] + 1\n'},
    "the next one is saved": {SAVED: SAVED.replace("epoch}", "epoch + 1}")},
    "the loop adds 1": {"range(start_epoch,": "range(start_epoch + 1,"},
    "saved before the training": {
        "        train_epoch(model, optimizer)\n": "",
        SAVED: f"{SAVED}\n        train_epoch()",
    },
    "saved within the epoch": {
        "        train_epoch(model, optimizer)\n        torch.save": "        for x in loader:\n            train(x)\n"
        "            torch.save"
    },
    "another key": {SAVED: SAVED.replace('"epoch":', '"finished":')},
}


def _changed(changes):
    script = REPEATED
    for old, new in changes.items():
        script = script.replace(old, new)
    return script


@pytest.mark.parametrize("changes", AGAIN.values(), ids=AGAIN)
def test_lint_reports_an_epoch_that_is_trained_twice(lint_reports, changes):
    lint_reports(_changed(changes).replace(SAVED, f"{SAVED}  # <- CKP016"))


@pytest.mark.parametrize("changes", NOT_AGAIN.values(), ids=NOT_AGAIN)
def test_lint_ignores_the_next_epoch(lint_is_clean, changes):
    lint_is_clean(_changed(changes), "CKP016")
