"""MDL004: one layer repeated in a list, and correct programs that look like it."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import ModuleList, Sequential, Linear
"""

CORRECT = {
    "a function that returns an existing layer": """
shared = nn.Linear(4, 4)
def pick():
    return shared
layers = nn.ModuleList([pick()] * 3)
""",
    "a comprehension": "layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])\n",
    "layers without weights": "layers = nn.Sequential(*[nn.ReLU()] * 3, *[nn.Sequential(nn.Dropout(0.1))] * 2)\n",
    "a module of this file without weights": """
class Square(nn.Module):
    def forward(self, x):
        return x * x
layers = nn.ModuleList([Square()] * 3)
""",
    "shared on purpose, by a name": "shared = nn.Linear(4, 4)\nlayers = nn.ModuleList([shared] * 3)\n",
    "called in a loop": """
class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Linear(4, 4)
    def forward(self, x):
        for _ in range(3):
            x = self.block(x)
        return x
model = Shared()
""",
    "once": "layers = nn.ModuleList([nn.Linear(4, 4)] * 1)\n",
    "sizes, not layers": "layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip([4] * 3, [4] * 3)])\n",
    "a list that is not part of a model": "probes = [nn.Linear(4, 4)] * 3\n",
    "a list that is filled afterwards, with optimizers": """
models = [nn.Linear(4, 4)] * 3
for i in range(3):
    models[i] = nn.Linear(4, 4)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
""",
    "one model for each batch of a map": """
batches = [torch.rand(4, 4)] * 3
outputs = list(map(lambda pair: pair[0](pair[1]), zip([nn.Linear(4, 4)] * 3, batches)))
""",
    "a list that is filled afterwards": """
def make(depth):
    layers = [nn.Linear(4, 4)] * depth
    layers = [nn.Linear(4, 4) for _ in layers]
    return nn.Sequential(*layers)
""",
}

BROKEN = {
    "a function that creates a network": """
def mlp(width, depth):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleList([mlp(4, 2)] * 2)  # <- MDL004
    def forward(self, a, b):
        return self.branches[0](a) * self.branches[1](b)
""",
    "a class": """
class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4)] * depth)  # <- MDL004
    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
        return x
model = Net(3)
""",
    "blocks of this file, in a chain, the number first": """
class Block(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
    def forward(self, x):
        return x + self.conv(x)
class Net(nn.Module):
    def __init__(self, n_blocks=10):
        super().__init__()
        self.blocks = nn.Sequential(
            *(n_blocks * [Block(channels=8)]))  # <- MDL004
    def forward(self, x):
        return self.blocks(x)
""",
    "a helper": """
def make_body(depth: int) -> nn.Module:
    body = [nn.TransformerEncoderLayer(8, 2, batch_first=True)] * depth  # <- MDL004
    return Sequential(*body)
optimizer = torch.optim.AdamW(make_body(2).parameters())
""",
    "next to other layers, imported by name": """
heads = ModuleList([Linear(4, 1), *[Linear(4, 2)] * 3])  # <- MDL004
optimizers = [torch.optim.SGD(head.parameters(), lr=0.1) for head in heads]
""",
    "members of an ensemble, made by a function": """
def make_member():
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
members = [make_member()] * 5  # <- MDL004
optims = [torch.optim.Adam(m.parameters(), lr=2e-3) for m in members]
for m, o in zip(members, optims):
    o.zero_grad()
    m(torch.rand(4, 1)).mean().backward()
    o.step()
""",
    "agents in an object": """
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = nn.Linear(4, 2)
class Team:
    def __init__(self, n):
        self.agents = [Agent()] * n  # <- MDL004
        self.optimizers = []
        for agent in self.agents:
            self.optimizers.append(torch.optim.SGD(agent.parameters(), lr=0.1))
team = Team(3)
""",
    "several at a time": "model = nn.Sequential(*([nn.Linear(4, 4), nn.ReLU()] * 3), nn.Linear(4, 1))  # <- MDL004\n",
}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL004")


@pytest.mark.parametrize("name", BROKEN)
def test_lint_reports_it(lint_reports, name):
    (found,) = lint_reports(HEAD + BROKEN[name], fixes=name != "several at a time")
    assert "share its weights" in found.message


CACHED = {
    "a registry": """
import functools
NORMS = {"bn": nn.BatchNorm1d, "ln": nn.LayerNorm}
@functools.lru_cache(maxsize=None)  # <- MDL004
def build_norm(name, width):
    return NORMS[name](width)
model = nn.Sequential(nn.Linear(4, 8), build_norm("bn", 8), nn.Linear(8, 8), build_norm("bn", 8))
""",
    "a class of the program": """
from functools import cache
class ConvBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3)
@cache  # <- MDL004
def block(width):
    return ConvBlock(width)
""",
}
NOT_CACHED = {
    "the class is cached, not the layer": """
from functools import lru_cache
NORMS = {"bn": nn.BatchNorm1d}
@lru_cache
def norm_class(name):
    return NORMS[name]
model = nn.Sequential(norm_class("bn")(8), norm_class("bn")(8))
""",
    "a model that is loaded once": """
from functools import lru_cache
class Net(nn.Module):
    def __init__(self, path):
        super().__init__()
        self.head = nn.Linear(4, 2)
@lru_cache
def load_model(path):
    return Net(path)
""",
    "a matrix": """
from functools import lru_cache
@lru_cache
def positions(length):
    return torch.arange(length)
""",
}


@pytest.mark.parametrize("script", CACHED.values(), ids=CACHED)
def test_lint_reports_cached_layers(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", NOT_CACHED.values(), ids=NOT_CACHED)
def test_lint_accepts_other_caches(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL004")


BY_CALL = {
    "repeat of several": """
from itertools import chain, repeat
def deep(width, depth):
    hidden = chain.from_iterable(repeat((nn.Linear(width, width), nn.Tanh()), depth))  # <- MDL004
    return nn.Sequential(nn.Linear(2, width), *hidden, nn.Linear(width, 1))
net = deep(4, 3)
""",
    "repeat of one, by its module": """
import itertools
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x):
        return x + torch.relu(self.linear(x))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(itertools.repeat(Block(2), 3))  # <- MDL004
        self.head = nn.Linear(2, 1)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)
net = Net()
""",
    "keys of a dictionary": """
class Net(nn.Module):
    def __init__(self, names=("a", "b")):
        super().__init__()
        self.heads = nn.ModuleDict(dict.fromkeys(names, nn.Linear(2, 1)))  # <- MDL004
    def forward(self, x):
        return sum(head(x) for head in self.heads.values())
net = Net()
""",
    "shallow copies": """
import copy
class Net(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.blocks = nn.Sequential(*[copy.copy(block) for _ in range(3)])  # <- MDL004
        self.head = nn.Linear(2, 1)
    def forward(self, x):
        return self.head(self.blocks(x))
net = Net(nn.Linear(2, 2))
""",
}
NOT_BY_CALL = {
    "a name": """
from itertools import repeat
block = nn.Linear(2, 2)
net = nn.Sequential(*repeat(block, 3), nn.Linear(2, 1))
""",
    "layers without weights": """
from itertools import repeat
net = nn.Sequential(*repeat(nn.Tanh(), 3), nn.Linear(2, 1))
""",
    "classes and sizes": """
import copy
from itertools import repeat
sizes = copy.copy([2, 2, 2])
net = nn.Sequential(*(kind(a, b) for kind, a, b in zip(repeat(nn.Linear), sizes, [2, 2, 1])))
""",
    "one layer of an ALBERT, in a list by name, next to a repeated tensor": """
shared = nn.Linear(2, 2)
net = nn.Sequential(*[shared] * 3, nn.Linear(2, 1))
weights = [torch.ones(2)] * 3
import copy
def rates(lr=0.1):
    return [lr] * 2
settings, parts = copy.copy({"depth": 3}), [rates()] * 2
""",
    "deep copies": """
import copy
block = nn.Linear(2, 2)
net = nn.Sequential(*[copy.deepcopy(block) for _ in range(3)], nn.Linear(2, 1))
config = copy.copy({"depth": 3})
""",
}
LOOP = """
x = torch.randn(64, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(6):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("script", BY_CALL.values(), ids=BY_CALL)
def test_run_and_lint_report_layers_repeated_by_a_call(run_reports, lint_reports, script):
    run_reports(HEAD + script + LOOP)
    lint_reports(HEAD + script + LOOP)


@pytest.mark.parametrize("script", NOT_BY_CALL.values(), ids=NOT_BY_CALL)
def test_run_and_lint_accept_shared_and_new_layers(run_is_clean, lint_is_clean, script):
    run_is_clean(HEAD + script + LOOP)
    lint_is_clean(HEAD + script + LOOP)


def test_run_reports_a_multiplied_list(run_reports):
    run_reports(HEAD + "net = nn.Sequential(*[nn.Linear(2, 2)] * 3, nn.Linear(2, 1))  # <- MDL004" + LOOP)
