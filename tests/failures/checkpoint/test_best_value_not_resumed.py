"""CKP018: a best value that starts again in a resumed run, or gets the latest value."""

import pytest

SCRIPT = """
import torch

def main(model, optimizer, path, epochs):
    start_epoch = 0
    best_acc = 0.0  # <- CKP018
    if path:
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_epoch = checkpoint["epoch"] + 1
    for epoch in range(start_epoch, epochs):
        train(model, optimizer)
        acc = evaluate(model)
        if acc > best_acc:
            best_acc = acc
            torch.save(model.state_dict(), "best.pt")
"""
UPDATE = """        if acc > best_acc:
            best_acc = acc
            torch.save(model.state_dict(), "best.pt")
"""
FAULTY = {
    "plain": {},
    "a flag": {
        UPDATE: "        top = acc >= best_acc\n        best_acc = max(acc, best_acc)\n        save(model, top)\n"
    },
    "an argument for the epoch": {
        'torch.load(path)\n        model.load_state_dict(checkpoint["model"])': "None\n"
        "        model.load_state_dict(torch.load(path))",
        'checkpoint["epoch"] + 1': "args.continue_epoch",
        '        optimizer.load_state_dict(checkpoint["optimizer"])\n': "        optimizer.load_state_dict(saved)\n",
    },
}
CORRECT = {
    "restored": {"+ 1\n": '+ 1\n        best_acc = checkpoint["best_acc"]\n'},
    "restored by get": {"+ 1\n": '+ 1\n        best_acc = checkpoint.get("best_acc", 0.0)\n'},
    "restored under another key": {"+ 1\n": '+ 1\n        best_acc = checkpoint["acc"]\n'},
    "measured before the loop": {"    for epoch": "    best_acc = evaluate(model)\n    for epoch"},
    "a file for each epoch": {'"best.pt"': 'f"best_{epoch}.pt"'},
    "counted from 0": {"range(start_epoch, epochs)": "range(epochs)", 'start_epoch = checkpoint["epoch"] + 1': "pass"},
    "a parameter": {"path, epochs)": "path, epochs, best_acc)", "    best_acc = 0.0  # <- CKP018\n": ""},
    "only printed": {'            torch.save(model.state_dict(), "best.pt")\n': "            print(acc)\n"},
}
CLASS = """
import torch

class Trainer:
    def __init__(self):
        self.start_epoch = 1
        self.best_loss = float("inf")  # <- CKP018
    def resume(self, path):
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.start_epoch = state["epoch"] + 1
    def fit(self):
        for epoch in range(self.start_epoch, 100):
            self.train_epoch(epoch)
            self.validate(epoch)
    def validate(self, epoch):
        loss = self.evaluate()
        if loss < self.best_loss:
            self.best_loss = loss
            self.save("best.pt")
"""


def _changed(changes, script=SCRIPT):
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    return script


@pytest.mark.parametrize("changes", FAULTY.values(), ids=FAULTY)
def test_lint_reports_it(lint_reports, changes):
    lint_reports(_changed(changes))


@pytest.mark.parametrize("changes", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, changes):
    lint_is_clean(_changed(changes), "CKP018")


def test_lint_reports_an_attribute(lint_reports):
    lint_reports(CLASS)


def test_lint_ignores_an_attribute_that_is_restored(lint_is_clean):
    lint_is_clean(CLASS.replace('"] + 1\n', '"] + 1\n        self.best_loss = state["loss"]\n'), "CKP018")


LATEST = """
import torch

def main(model, optimizer, path, epochs):
    start_epoch, best_acc = 0, 0.0
    if path:
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_epoch = checkpoint["epoch"] + 1
        best_acc = checkpoint["acc"]
    for epoch in range(start_epoch, epochs):
        train(model, optimizer)
        acc = evaluate(model)
        is_best = acc > best_acc
        best_acc = max(acc, best_acc)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
            "acc": acc,  # <- CKP018
        }
        torch.save(state, "last.pt")
        if is_best:
            torch.save(state, "best.pt")
"""
LATEST_FAULTY = {
    "plain": {},
    "a key that says best": {'["acc"]': '["best_acc"]', '"acc": acc': '"best_acc": acc'},
    "an if": {
        "        is_best = acc > best_acc\n        best_acc = max(acc, best_acc)\n": "",
        "        if is_best:\n": "        if acc > best_acc:\n            best_acc = acc\n",
    },
    "a module": {"model.load_state_dict(checkpoint": "model = (checkpoint"},
}
LATEST_CORRECT = {
    "the best value": {'"acc": acc': '"acc": best_acc'},
    "another key is read": {'best_acc = checkpoint["acc"]': 'best_acc = checkpoint["top"]'},
    "saved only if it is the best": {
        "        state = {": "        if acc < best_acc:\n            continue\n        best_acc = acc\n"
        "        state = {",
        'checkpoint["acc"]': 'checkpoint["best"]',
    },
    "not taken for the best": {'best_acc = checkpoint["acc"]': "best_acc = evaluate(model)"},
    "under a condition": {
        "        state = {\n": "        state = None\n        if is_best: state = {\n",
    },
}
FUNCTIONS = """
import torch

def save(path, epoch, bleu, is_best, model):
    state = {"epoch": epoch, "bleu": bleu, "model": model}  # <- CKP018
    torch.save(state, path)
    if is_best:
        torch.save(state, "best_" + path)

def load(path, model):
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    score = checkpoint["bleu"]
    return checkpoint["epoch"], score

def main(model, path):
    start, best_bleu = load(path, model)
    for epoch in range(start, 100):
        recent = evaluate(model)
        is_best = recent > best_bleu
        best_bleu = max(recent, best_bleu)
        save(path, epoch, recent, is_best, model)
"""


@pytest.mark.parametrize("changes", LATEST_FAULTY.values(), ids=LATEST_FAULTY)
def test_lint_reports_the_latest_value(lint_reports, changes):
    lint_reports(_changed(changes, LATEST))


@pytest.mark.parametrize("changes", LATEST_CORRECT.values(), ids=LATEST_CORRECT)
def test_lint_ignores_the_best_value_in_a_checkpoint(lint_is_clean, changes):
    lint_is_clean(_changed(changes, LATEST).replace("  # <- CKP018", ""), "CKP018")


def test_lint_follows_functions(lint_reports):
    lint_reports(FUNCTIONS)


def test_lint_ignores_functions_that_get_the_best_value(lint_is_clean):
    lint_is_clean(FUNCTIONS.replace("epoch, recent,", "epoch, best_bleu,"), "CKP018")
