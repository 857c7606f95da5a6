"""LOS014: a ReLU or tanh directly before a loss that takes logits."""

import textwrap

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
x = torch.randn(64, 6)
y = torch.randint(0, 3, (64,))
def train(net, loss_of):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(net(x)).backward()
        optimizer.step()
"""
FAULTY = {
    "at the end of a model": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
    def forward(self, x):
        x = F.relu(self.a(x))
        return F.relu(self.b(x))
train(Net(), lambda out: F.cross_entropy(out, y))  # <- LOS014
""",
    "a layer": """
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3), nn.ReLU(inplace=True))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
train(net, lambda out: criterion(out, y))  # <- LOS014
""",
    "binary": """
net = nn.Sequential(nn.Linear(6, 1), nn.ReLU())
target = (x.sum(1) > 0).float()
train(net, lambda out: F.binary_cross_entropy_with_logits(out.squeeze(1), target))  # <- LOS014
""",
    "a tanh at the end of a model": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
    def forward(self, x):
        return torch.tanh(self.b(torch.tanh(self.a(x))))
train(Net(), lambda out: F.cross_entropy(out, y))  # <- LOS014
""",
    "a tanh layer": """
net = nn.Sequential(nn.Linear(6, 1), nn.Tanh())
criterion = nn.BCEWithLogitsLoss()
train(net, lambda out: criterion(out.squeeze(1), (x.sum(1) > 0).float()))  # <- LOS014
""",
    "an ELU at the end of a model": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.elu = nn.Linear(6, 8), nn.Linear(8, 3), nn.ELU()
    def forward(self, x):
        return self.elu(self.b(self.elu(self.a(x))))
train(Net(), lambda out: F.cross_entropy(out, y))  # <- LOS014
""",
    "a SiLU": """
net = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 1), nn.SiLU())
train(net, lambda out: F.binary_cross_entropy_with_logits(out.squeeze(1), (x.sum(1) > 0).float()))  # <- LOS014
""",
    "a GELU": "train(nn.Linear(6, 3), lambda out: F.cross_entropy(F.gelu(out), y))  # <- LOS014\n",
    "before the loss": """
train(nn.Linear(6, 3), lambda out: nn.CrossEntropyLoss()(torch.relu(out), y))  # <- LOS014
""",
}
CORRECT = {
    "ELUs between the layers": """
net = nn.Sequential(nn.Linear(6, 8), nn.ELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))
train(net, lambda out: F.cross_entropy(out, y))
""",
    "a leaky ReLU": """
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.LeakyReLU(0.2))
train(net, lambda out: F.cross_entropy(out, y))
""",
    "an ELU plus 1 for a positive number": """
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
train(net, lambda out: F.mse_loss(F.elu(out).squeeze(1) + 1, x.abs().sum(1)))
""",
    "between the layers": """
train(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), lambda out: F.cross_entropy(out, y))
""",
    "a scaled tanh": """
train(nn.Linear(6, 3), lambda out: F.cross_entropy(10 * torch.tanh(out / 10), y))
""",
    "a tanh between the layers": """
train(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), lambda out: F.cross_entropy(out, y))
""",
    "a tanh for targets between -1 and 1": """
train(nn.Sequential(nn.Linear(6, 1), nn.Tanh()), lambda out: F.mse_loss(out.squeeze(1), x[:, 0].clamp(-1, 1)))
""",
    "counts": """
train(nn.Sequential(nn.Linear(6, 1), nn.ReLU()), lambda out: F.mse_loss(out.squeeze(1), y.float()))
""",
    "shifted": """
train(nn.Linear(6, 3), lambda out: F.cross_entropy(torch.relu(out) - 2, y))
""",
    "another activation": """
train(nn.Sequential(nn.Linear(6, 3), nn.LeakyReLU()), lambda out: F.cross_entropy(out, y))
""",
    "dropout in between": """
train(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3)), lambda out: F.cross_entropy(out, y))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_loss(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS014")


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_loss(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_programs(run_is_clean, script):
    run_is_clean(HEAD + script)


EVERY_LAYER = """
import torch
import torch.nn.functional as F
from torch import nn
class Net(nn.Module):
    def __init__(self, sizes, activation=F.relu):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])
        self.activation = activation
        self.out = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.1)
    def forward(self, x):
{forward}
model = Net([8, 16, 3])
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
AFTER_ALL = {
    "in one line": "for layer in self.layers:\n    x = F.relu(layer(x))  # <- LOS014\nreturn x",
    "in two": "for layer in self.layers:\n    x = layer(x)\n    x = torch.tanh(x)  # <- LOS014\nreturn x",
    "a method": "x = x.flatten(1)\nfor fc in self.layers:\n    x = fc(x).relu()  # <- LOS014\nreturn x",
    "a given one": "for layer in self.layers:\n    x = self.drop(self.activation(layer(x)))  # <- LOS014\nreturn x",
}
NOT_AFTER_ALL = {
    "another layer follows": "for layer in self.layers:\n    x = F.relu(layer(x))\nreturn self.out(x)",
    "all but the last": "for layer in self.layers[:-1]:\n    x = F.relu(layer(x))\nreturn self.layers[-1](x)",
    "not the last": "for i, layer in enumerate(self.layers):\n    x = layer(x)\n    if i < 1:\n        x = F.relu(x)\n"
    "return x",
    "before the layer": "for layer in self.layers:\n    x = layer(F.relu(x))\nreturn x",
    "a residual": "for layer in self.layers:\n    x = x + F.relu(layer(x))\nreturn x",
    "assigned again": "for layer in self.layers:\n    x = F.relu(layer(x))\nx = x - 2\nreturn x",
    "a method of a class that is kept": "h = x\nfor layer in self.layers:\n    h = F.relu(layer(h))\nreturn h - x",
}


@pytest.mark.parametrize("forward", AFTER_ALL.values(), ids=AFTER_ALL)
def test_lint_reports_an_activation_after_every_layer(lint_reports, forward):
    lint_reports(EVERY_LAYER.replace("{forward}", textwrap.indent(forward, " " * 8)))


@pytest.mark.parametrize("forward", NOT_AFTER_ALL.values(), ids=NOT_AFTER_ALL)
def test_lint_accepts_a_last_layer_without_activation(lint_is_clean, forward):
    script = EVERY_LAYER.replace("        self.drop = nn.Dropout(0.1)\n", "")
    lint_is_clean(script.replace("{forward}", textwrap.indent(forward, " " * 8)), "LOS014")


def test_lint_reports_a_list_of_layers_that_ends_with_an_activation(lint_reports):
    layers = "layers = []\nfor a, b in zip(sizes, sizes[1:]):\n    layers += [nn.Linear(a, b), nn.ReLU()]\n"
    script = EVERY_LAYER.replace("{forward}", "        return self.layers(x)")
    old = "        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])\n"
    script = script.replace(old, textwrap.indent(layers + "self.layers = nn.Sequential(*layers)\n", " " * 8))
    lint_reports(script.replace("criterion(model(x), y)", "criterion(model(x), y)  # <- LOS014"))
