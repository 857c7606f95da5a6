"""Stored samples that ``__getitem__`` changes in place."""

import ast

import pytest

from trueloop.analysis.interpreter.interpreter import interpret
from trueloop.analysis.project import Module
from trueloop.analysis.queries.changed_samples import find_changed_samples
from trueloop.core.source_text import SourceText

CLASS = """
import random
import numpy as np
import torch
from torch.utils.data import Dataset
class Data(Dataset):
    def __init__(self, x, y, items, base, transform):
        self.x, self.y, self.base, self.transform = x, y, base, transform
        self.images = np.load("images.npy").astype("float32")
        self.items = [dict(each) for each in items]
        self.tokens = [list(map(int, line.split())) for line in items]
        self.counts = [0] * len(x)
        self.cache = [None for _ in x]
    def __len__(self):
        return len(self.x)
    def normalise(self, image):
        image -= 0.5
        image /= 0.2
        return image
    def scaled(self, image):
        image = image - 0.5
        image /= 0.2
        return image
    def __getitem__(self, i):
"""
CHANGED = {
    "its own mean": "x = self.x[i]\nx -= x.mean()\nreturn x, self.y[i]",
    "one of two names": "x, y = self.x[i], self.y[i]\nx /= x.std()\nreturn x, y",
    "a method": "image = self.normalise(self.images[i])\nreturn torch.tensor(image).flatten(), self.y[i]",
    "noise": "image = torch.from_numpy(self.images[i])\nimage.add_(0.1 * torch.randn(8))\nreturn image",
    "without a name": "self.images[i] += np.random.randn(8)\nreturn self.images[i], self.y[i]",
    "a random mask": "x = self.x[i]\nx[torch.rand(8) < 0.1] = 0\nreturn x, self.y[i]",
    "tokens of a list": """
tokens = self.tokens[i]
for k in range(len(tokens)):
    if random.random() < 0.15:
        tokens[k] = 103
return tokens""",
    "part of a sample": "x = self.images[i:i + 8]\nx[:, 0] = x[:, 0] - x[0, 0]\nreturn x",
    "an entry of a dictionary": "item = self.items[i]\nitem['x'] = self.transform(item['x'])\nreturn item",
}
CORRECT = {
    "another value": "x = self.x[i]\nx = x - x.mean()\nx /= x.std()\nreturn x, self.y[i]",
    "a copy": "x = self.x[i].clone()\nx -= x.mean()\nreturn x, self.y[i]",
    "a copy, later": "x = self.x[i]\nx = x.copy()\nx[np.random.rand(8) < 0.1] = 0\nreturn x, self.y[i]",
    "a number": "x, label = self.x[i], self.y[i]\nlabel -= 1\nreturn x, label",
    "constants": "x = self.x[i]\nx[:2] = 0\nx.clamp_(0, 1)\nreturn x, self.y[i]",
    "items of another dataset": "x, y = self.base[i]\nx -= x.mean()\nreturn x, y",
    "dictionaries of another dataset": "item = self.base[i]\nitem['x'] = self.transform(item['x'])\nreturn item",
    "a counter": "self.counts[i] += 1\nreturn self.x[i], self.y[i]",
    "a cache": "if self.cache[i] is None:\n    self.cache[i] = self.transform(self.x[i])\nreturn self.cache[i]",
    "an index with a list": "x = self.images[[i, i + 1]]\nx -= x.mean()\nreturn x",
    "a method that computes": "image = self.scaled(self.images[i])\nreturn torch.tensor(image).flatten()",
    "once per sample": """
x = self.images[i]
if not self.counts[i]:
    x -= x.mean()
    self.counts[i] = 1
return x""",
    "a copied list": "tokens = list(self.tokens[i])\ntokens[random.randrange(8)] = 103\nreturn tokens",
}


def found(body: str) -> list[str]:
    text = CLASS + "".join(f"        {line}\n" for line in body.strip().splitlines())
    return [
        each.message for each in find_changed_samples(interpret(Module("data.py", SourceText(text), ast.parse(text))))
    ]


@pytest.mark.parametrize("name", CHANGED)
def test_a_sample_that_is_changed_in_place_is_found(name):
    messages = found(CHANGED[name])
    assert messages
    assert "changes the stored sample `self." in messages[0]


@pytest.mark.parametrize("name", CORRECT)
def test_copies_and_numbers_are_not(name):
    assert found(CORRECT[name]) == []
