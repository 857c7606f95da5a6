"""Statements that name a method without calling it: ``net.eval``."""

from pathlib import Path

import pytest

from trueloop.app.lint.lint_command import active_rules
from trueloop.failures.selection import select_failures
from trueloop.lint.check_file import lint_text

HEAD = """
import torch
from torch import nn
"""
UNCALLED = {
    "EVL001": """
def accuracy(net, x, y):
    net.eval
    with torch.no_grad():
        result = (net(x).argmax(1) == y).float().mean()
    net.train()
    return result
""",
    "EVL002": """
class Trainer:
    def epoch(self, loader):
        self.model.train
        for x, y in loader:
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()
        self.model.eval()
""",
    "GRD001": """
def fit(model, opt, loader):
    for x, y in loader:
        opt.zero_grad  # why does it not learn?
        nn.functional.mse_loss(model(x), y).backward()
        opt.step()
""",
}
CALLED = {
    "passed on": """
def evaluate(net):
    switch = net.eval
    switch()
    return net.train()
""",
    "a property that loads": """
class Data:
    @property
    def train(self):
        return self.load("train")
data = Data()
data.train
data.eval
""",
    "called": """
def evaluate(net, x):
    net.eval()
    return net(x)
""",
}


def messages(source: str) -> list[tuple[str, str]]:
    rules = active_rules(select_failures((), (), folder=Path()))
    return [(each.code, each.message) for each in lint_text(HEAD + source, "train.py", rules).findings]


@pytest.mark.parametrize("code", UNCALLED)
def test_a_method_without_parentheses_is_reported(code: str):
    assert [found for found, text in messages(UNCALLED[code]) if "without `()`" in text] == [code]


@pytest.mark.parametrize("source", CALLED.values(), ids=CALLED)
def test_other_uses_of_the_name_are_not(source: str):
    assert not [text for _, text in messages(source) if "without `()`" in text]
