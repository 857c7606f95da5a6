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

CORRECT |= {
    "one cell for several rounds": """
class Cell(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.message, self.gru = nn.Linear(dim, dim), nn.GRUCell(dim, dim)
rounds = 4
model.cells = nn.ModuleList([Cell(8)] * rounds)
model.refine = nn.Sequential(*([nn.Linear(8, 8)] * model.num_iterations))
"""
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


BLOCK = """
class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)
    def forward(self, x):
        return x + torch.relu(self.linear(x))
"""

ONE_INSTANCE = {
    "appended in a loop": """
class Net(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        layers = []
        block = Block()
        for _ in range(depth):
            layers.append(block)  # <- MDL004
        self.body = nn.Sequential(*layers)
""",
    "a comprehension, and a layer of PyTorch": """
def make_body(width, depth):
    layer = nn.TransformerEncoderLayer(width, 2, batch_first=True)
    return ModuleList([layer for _ in range(depth)])  # <- MDL004
body = make_body(8, 3)
""",
    "a copy that was forgotten": """
def clones(module, n):
    return nn.ModuleList([module for _ in range(n)])  # <- MDL004
class Encoder(nn.Module):
    def __init__(self, n=6):
        super().__init__()
        self.layers = clones(Block(8), n)
""",
    "heads of tasks": """
class Tasks(nn.Module):
    def __init__(self, tasks=("age", "income")):
        super().__init__()
        head = nn.Linear(4, 1)
        self.heads = nn.ModuleDict({task: head for task in tasks})  # <- MDL004
""",
    "a container filled in a loop, with other layers": """
class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        unit = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.towers = nn.ModuleList()
        for size in range(n):
            self.towers.append(nn.Sequential(unit, nn.Linear(4, size + 1)))  # <- MDL004
""",
    "added by name": """
class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        conv = nn.Conv2d(8, 8, 3, padding="same")
        for i in range(n):
            self.add_module(f"conv{i}", conv)  # <- MDL004
""",
    "a function without parameters": """
cell = Block()
make = lambda: cell
net = nn.Sequential(*[make() for _ in range(4)])  # <- MDL004
""",
    "the list in a variable": """
class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        conv = nn.Conv1d(8, 8, 3, padding=1)
        stack = [conv] * depth + [nn.Flatten()]  # <- MDL004
        self.body = nn.Sequential(*stack)
""",
    "a default of a function": """
def head(classes, body=Block(8)):  # <- MDL004
    return nn.Sequential(body, nn.Linear(8, classes))
net = nn.ModuleList([head(n) for n in (2, 3)])
""",
    "a default of a class": """
class Stage(nn.Module):
    def __init__(self, norm=nn.LayerNorm(8)):  # <- MDL004
        super().__init__()
        self.norm = norm
first, second = Stage(), Stage()
""",
}

SEVERAL_INSTANCES = {
    "another layer in each iteration": """
def body(depth):
    layers = []
    for _ in range(depth):
        block = Block()
        layers.append(block)
    return nn.Sequential(*layers)
""",
    "the next layer at the end of the iteration": """
def body(widths=(4, 8)):
    layers, block = [], Block(4)
    for width in widths:
        layers.append(block)
        block = Block(width)
    return nn.Sequential(*layers)
""",
    "copies": """
import copy
def clones(module, n):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])
layers = clones(Block(), 3)
""",
    "without weights": """
def body(depth):
    act, drop, layers = nn.ReLU(), nn.Dropout(0.1), []
    for _ in range(depth):
        layers += [nn.Linear(4, 4), act, drop, nn.Flatten()]
    return nn.Sequential(*layers)
""",
    "weights are shared, as a comment says": """
class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        block = Block()  # cross-layer parameter sharing
        self.layers = nn.ModuleList([block for _ in range(depth)])
""",
    "a setting": """
class Net(nn.Module):
    def __init__(self, depth, one_head):
        super().__init__()
        head = Block()
        if one_head:
            self.heads = nn.ModuleList([head for _ in range(depth)])
        else:
            self.heads = nn.ModuleList([Block() for _ in range(depth)])
""",
    "one cell in a loop over time": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 4)
    def forward(self, x, h):
        states = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            states.append(h)
        return torch.stack(states)
""",
    "towers of a siamese network": """
class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        tower = Block()
        self.towers = nn.ModuleList([tower for _ in range(2)])
""",
    "the only head": """
class Net(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        head = nn.Linear(4, 2)
        self.body = nn.Sequential(Block(), head)
        self.names = [name for name in tasks]
""",
    "one trunk in the network of each trial": """
trunk = Block()
for width in (1, 2, 3):
    net = nn.Sequential(trunk, nn.Linear(4, width))
""",
    "several classes": """
def body(kinds=(nn.Linear, nn.Bilinear)):
    kind = nn.Linear
    return nn.Sequential(*[kind(4, 4) for _ in range(3)])
""",
    "a first layer before the others": """
def body(depth):
    first, layers = nn.Linear(2, 4), []
    for i in range(depth):
        layers.append(first if i == 0 else nn.Linear(4, 4))
    return nn.Sequential(*layers)
""",
    "a policy of several agents": """
class Team(nn.Module):
    def __init__(self, names):
        super().__init__()
        net = Block()
        self.policies = nn.ModuleDict({name: net for name in names})
""",
    "a default that one call uses": """
def head(classes, body=Block(8)):
    return nn.Sequential(body, nn.Linear(8, classes))
net = head(2)
other = head(3, Block(8))
""",
    "a history of one model": """
history = []
model = nn.Linear(2, 2)
for epoch in range(3):
    history.append(model)
net = nn.Sequential(model, nn.ReLU())
""",
}


@pytest.mark.parametrize("script", ONE_INSTANCE.values(), ids=ONE_INSTANCE)
def test_lint_reports_one_layer_as_several_entries(lint_reports, script):
    lint_reports(HEAD + BLOCK + script, fixes=False)


@pytest.mark.parametrize("script", SEVERAL_INSTANCES.values(), ids=SEVERAL_INSTANCES)
def test_lint_accepts_several_layers_and_shared_ones(lint_is_clean, script):
    lint_is_clean(HEAD + BLOCK + script, "MDL004")


WITH_NORM = """
class Block(nn.Module):
    def __init__(self, d, norm, attention=None):
        super().__init__()
        self.norm, self.attention, self.ff = norm, attention, nn.Linear(d, d)
    def forward(self, x):
        return x + self.ff(self.norm(x))
"""
PASSED = {
    "a variable": """
def make(d, n):
    norm = nn.LayerNorm(d)
    return nn.Sequential(*[Block(d, norm) for _ in range(n)])  # <- MDL004
""",
    "an attribute, by keyword": """
class Encoder(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.norm_layer = nn.LayerNorm(d)
        self.blocks = nn.ModuleList([Block(d, norm=self.norm_layer) for _ in range(n)])  # <- MDL004
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm_layer(x)
""",
    "appended in a loop": """
class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
    def forward(self, x):
        return (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1) @ self.v(x)
attention = Attention(8)
blocks = nn.ModuleList()
for _ in range(4):
    blocks.append(Block(8, nn.LayerNorm(8), attention))  # <- MDL004
""",
}
PASSED_CORRECT = {
    "created for each block": """
def make(d, n):
    return nn.Sequential(*[Block(d, nn.LayerNorm(d)) for _ in range(n)])
""",
    "created in the loop": """
blocks = nn.ModuleList()
for _ in range(4):
    norm = nn.LayerNorm(8)
    blocks.append(Block(8, norm))
""",
    "only one block": """
norm = nn.LayerNorm(8)
blocks = nn.ModuleList([Block(8, norm)])
""",
    "a class": """
norm = nn.LayerNorm
blocks = nn.ModuleList([Block(8, norm(8)) for _ in range(4)])
""",
    "shared by name": """
shared_norm = nn.LayerNorm(8)
blocks = nn.ModuleList([Block(8, shared_norm) for _ in range(4)])
""",
    "an activation": """
norm = nn.Identity()
blocks = nn.ModuleList([Block(8, norm) for _ in range(4)])
""",
    "heads of one encoder": """
class Head(nn.Module):
    def __init__(self, encoder, classes):
        super().__init__()
        self.encoder, self.out = encoder, nn.Linear(8, classes)
encoder = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
heads = nn.ModuleList([Head(encoder, n) for n in (2, 3)])
""",
    "copied by the block": """
import copy
class Copying(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = copy.deepcopy(norm)
norm = nn.LayerNorm(8)
blocks = nn.ModuleList([Copying(norm) for _ in range(4)])
""",
}


@pytest.mark.parametrize("script", PASSED.values(), ids=PASSED.keys())
def test_lint_reports_one_layer_in_several_blocks(lint_reports, script):
    lint_reports(HEAD + WITH_NORM + script)


@pytest.mark.parametrize("script", PASSED_CORRECT.values(), ids=PASSED_CORRECT.keys())
def test_lint_accepts_blocks_with_own_layers(lint_is_clean, script):
    lint_is_clean(HEAD + WITH_NORM + script)
