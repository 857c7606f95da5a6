"""MDL008: layers whose units start identical and stay identical."""

import pytest

HEAD = """
import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(96, 6)
y = x.prod(1, keepdim=True).sign()
labels = (y[:, 0] > 0).long()
"""
NET = "model = nn.Sequential(nn.Linear(6, {0}), nn.Tanh(), nn.Linear({0}, 1))\n"
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)\n"
LOOP = """
for step in range({}):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step(){}
"""
TRAINED = LOOP.format(40, "")


def marked(line: str) -> str:
    """Mark a line, which ends in a newline, as the one that is named."""
    return f"{line[:-1]}  # <- MDL008\n"


CLASS = """
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(1, width, 3, padding=1)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(6 * width, 2)
        self.reset()
    def reset(self):
        for layer in (self.conv, self.head):
            layer.weight.data.fill_(0.05)
            layer.bias.data.zero_()
    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x[:, None]))).flatten(1))
"""

BRANCH = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.gate, self.scale = nn.Parameter(torch.zeros(8, 1)), nn.Parameter(torch.ones(1, 8))
        self.last = nn.Linear(8, 1)
        nn.init.zeros_(self.b.weight)
        nn.init.zeros_(self.b.bias)
    def forward(self, x):
        x = self.first(x)
        return self.last(self.scale * (x + self.b(torch.tanh(self.a(x)))) + self.gate[:, 0] * x)
model = Net()
"""

BROKEN = {
    "a helper for every layer": NET.format(16)
    + """
def init(module):
    if isinstance(module, nn.Linear):
        nn.init.ones_(module.weight)  # <- MDL008
        nn.init.zeros_(module.bias)
model.apply(init)
"""
    + SGD
    + LOOP.format(24, ""),
    "two units": marked(NET.format(2))
    + "for p in model.parameters():\n    p.data.fill_(0.3)\n"
    + SGD
    + LOOP.format(24, ""),
    "an odd width, whose rows differ by rounding": NET.format(37)
    + "for p in model.parameters():\n    nn.init.constant_(p, 0.02)  # <- MDL008\n"
    + "optimizer = torch.optim.Adam(model.parameters())\n"
    + LOOP.format(24, ""),
    "a class with convolutions, two optimizers, and batches": CLASS.replace("padding=1)", "padding=1)  # <- MDL008")
    + """
model = Net(9)
body = torch.optim.SGD([*model.conv.parameters(), *model.norm.parameters()], lr=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(6):
    for a, b in DataLoader(TensorDataset(x, labels), batch_size=16, shuffle=True):
        loss = F.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "zeros behind constants, with accumulation and a scaler that is off": marked(NET.format(8))
    + """
with torch.no_grad():
    model[0].weight.copy_(torch.full((8, 6), 0.2))
    model[0].bias.zero_()
    model[2].weight.zero_()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", enabled=False)
def train():
    for step in range(48):
        scaler.scale(F.mse_loss(model(x), y) / 2).backward()
        if step % 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
train()
""",
    "user-defined weights, in a closure": """
w1, b1 = nn.Parameter(torch.ones(5, 6) / 6), nn.Parameter(torch.zeros(5))
w2, b2 = nn.Parameter(torch.ones(1, 5) / 5), nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([w1, b1, w2, b2], lr=0.05)
def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(F.linear(torch.tanh(F.linear(x, w1, b1)), w2, b2), y)
    loss.backward()
    return loss
for _ in range(20):
    optimizer.step(closure)  # <- MDL008
""",
    "a branch whose two layers start at zero": BRANCH
    + "nn.init.zeros_(model.a.weight)  # <- MDL008\nnn.init.zeros_(model.a.bias)\n"
    + SGD
    + LOOP.format(24, ""),
    "both factors of a low rank start at zero": """
base = nn.Linear(6, 1)
base.requires_grad_(False)
down, up = nn.Parameter(torch.zeros(2, 6)), nn.Parameter(torch.zeros(1, 2))
optimizer = torch.optim.Adam([down, up], lr=0.05)
for _ in range(20):
    optimizer.zero_grad()
    F.mse_loss(base(x) + x @ down.T @ up.T, y).backward()
    optimizer.step()  # <- MDL008
""",
    "the second of two optimizers": NET.format(4)
    + """
critic = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 1))
for p in critic.parameters():
    nn.init.constant_(p, 0.1)  # <- MDL008
first = torch.optim.SGD(model.parameters(), lr=0.05)
second = torch.optim.SGD(critic.parameters(), lr=0.05)
for _ in range(40):
    for net, optimizer in ((model, first), (critic, second)):
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()
""",
}
CORRECT = {
    "an output layer that starts at zero": NET.format(8) + "nn.init.zeros_(model[2].weight)\n" + SGD + TRAINED,
    "constants behind random weights": NET.format(8) + "nn.init.constant_(model[2].weight, 0.1)\n" + SGD + TRAINED,
    "constants before random weights": NET.format(8) + "nn.init.constant_(model[0].weight, 0.1)\n" + SGD + TRAINED,
    "a linear model": "model = nn.Linear(6, 1)\nnn.init.zeros_(model.weight)\n" + SGD + TRAINED,
    "outputs with the same targets": "model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))\n"
    "nn.init.zeros_(model[2].weight)\nnn.init.zeros_(model[2].bias)\ny = y.expand(96, 3)\n" + SGD + TRAINED,
    "a branch and gates that start at zero": BRANCH + SGD + TRAINED,
    "constants in normalisations and biases": """
model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 1))
for p in model.parameters():
    if p.dim() == 1:
        nn.init.constant_(p, 0.5)
"""
    + SGD
    + TRAINED,
    "constants that dropout separates": """
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))
for p in model.parameters():
    nn.init.constant_(p, 0.1)
"""
    + SGD
    + TRAINED,
    "constants with a little noise": NET.format(8)
    + "for p in model.parameters():\n    p.data.fill_(0.1).add_(0.01 * torch.randn_like(p))\n"
    + SGD
    + TRAINED,
    "a low rank whose second half starts at zero": """
class LoRA(nn.Module):
    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) / 3)
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank))
    def forward(self, x):
        return self.layer(x) + x @ self.a.T @ self.b.T
model = nn.Sequential(LoRA(nn.Linear(6, 8), 2), nn.Tanh(), LoRA(nn.Linear(8, 1), 2))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
"""
    + TRAINED,
    "a frozen blur, and one that is trained": """
class Blurred(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv1d(1, 4, 3, padding=1), nn.Linear(24, 1)
        self.blur = nn.Conv1d(4, 4, 3, padding=1, groups=4, bias=False)
        self.own = nn.Conv1d(4, 4, 3, padding=1, groups=4, bias=False)
        for layer in (self.blur, self.own):
            nn.init.constant_(layer.weight, 1 / 3)
        self.blur.requires_grad_(False)
    def forward(self, x):
        return self.last(self.own(self.blur(torch.tanh(self.conv(x[:, None])))).flatten(1))
model = Blurred()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
"""
    + TRAINED,
    "sign updates keep all rows equal for a while": """
model = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 1))
nn.init.constant_(model[0].weight, 0.5)
nn.init.constant_(model[2].weight, 0.5)
for layer, start in ((model[0], 0.0), (model[2], 0.1)):
    layer.bias.data = torch.linspace(start, start + 1, len(layer.bias))
for step in range(1):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""
    + TRAINED,
    "an ensemble in one parameter with equal starts": """
first, last = nn.Parameter(torch.full((3, 6, 3), 0.1)), nn.Parameter(torch.full((3, 3, 1), 0.1))
optimizer = torch.optim.SGD([first, last], lr=0.05)
for _ in range(40):
    rows = torch.randint(96, (3, 32))
    optimizer.zero_grad()
    F.mse_loss(torch.tanh(x[rows] @ first) @ last, y[rows]).backward()
    optimizer.step()
""",
    "an embedding that starts at zero, and tied to the output": """
table = nn.Embedding(4, 6)
nn.init.zeros_(table.weight)
body = nn.Linear(6, 6)
optimizer = torch.optim.SGD([*table.parameters(), *body.parameters()], lr=0.05)
for _ in range(40):
    words = torch.randint(4, (32,))
    optimizer.zero_grad()
    F.cross_entropy(F.linear(torch.tanh(body(table(words))), table.weight), (words + 1) % 4).backward()
    optimizer.step()
""",
    "a layer of zeros in a branch that is not used yet": BRANCH
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(40):
    optimizer.zero_grad()
    out = model(x) if step > 30 else model.last(model.first(x))
    F.mse_loss(out, y).backward()
    optimizer.step()
""",
    "a rate that starts at zero, with an output layer of zeros": NET.format(8)
    + """
nn.init.zeros_(model[2].weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(40):
    optimizer.param_groups[0]["lr"] = 0.0 if step < 20 else 0.05
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    "too few updates": NET.format(8)
    + "for p in model.parameters():\n    nn.init.constant_(p, 0.1)\n"
    + SGD
    + LOOP.format(12, ""),
    "a rate of zero": NET.format(8)
    + "for p in model.parameters():\n    nn.init.constant_(p, 0.1)\n"
    + "optimizer = torch.optim.SGD([{'params': model[0].parameters(), 'lr': 0.0},\n"
    + "    {'params': model[2].parameters(), 'lr': 0.05}])\n"
    + TRAINED,
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_run_reports_it(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, script):
    run_is_clean(HEAD + script)


def test_message_names_every_layer_and_its_units(run_reports):
    deep = "model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))\n"
    constant = "for p in model.parameters():\n    nn.init.constant_(p, 0.1)  # <- MDL008\n"
    [found] = run_reports(HEAD + deep + constant + SGD + LOOP.format(24, "")).findings
    assert found.message == (
        "After 17 updates all 8 rows of 0.weight and all 4 rows of 2.weight are identical, and so are their gradients "
        "and the matching weights of the next layer: each of these layers has the effect of a single unit."
    )


def test_too_few_updates_are_not_judged(run):
    report = run(HEAD + NET.format(8) + SGD + LOOP.format(4, "")).report
    [verdict] = [each for each in report.verdicts if each.code == "MDL008"]
    assert str(verdict.verdict) == "not judged"
    assert "too few updates" in verdict.reason


def test_two_layers_of_zeros_are_reported_once(run):
    zeros = "for p in model.parameters():\n    nn.init.zeros_(p)\n"
    found = run(HEAD + NET.format(8) + zeros + SGD + LOOP.format(100, "")).findings
    assert [(each.code, each.severity) for each in found if each.code != "LRN005"] == [
        ("MDL008", "warning"),
        ("GRD006", "note"),
    ]


# Constants in the source ------------------------------------------------------------------------------------------

CONSTANTS_IN_THE_SOURCE_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

CONSTANTS_IN_THE_SOURCE = {
    "every linear layer": """
def start(module):
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.weight, 0.0)  # <- MDL008
        nn.init.constant_(module.bias, 0.01)
    elif isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
        self.apply(start)

    def forward(self, inputs):
        return self.last(torch.relu(self.first(inputs)))

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    optimizer.step()
""",
}

CONSTANTS_IN_THE_SOURCE_FINE = {
    "biases and normalisation only": """
def start(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.constant_(module.bias, 0.01)
    elif isinstance(module, nn.LayerNorm):
        nn.init.ones_(module.weight)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
        self.apply(start)

    def forward(self, inputs):
        return self.last(torch.relu(self.first(inputs)))

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    optimizer.step()
""",
    "a single layer": """
net = nn.Linear(6, 1)
for module in net.modules():
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.weight)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", CONSTANTS_IN_THE_SOURCE)
def test_lint_reports_constants_in_the_source(lint_reports, name):
    lint_reports(CONSTANTS_IN_THE_SOURCE_HEAD + CONSTANTS_IN_THE_SOURCE[name])


@pytest.mark.parametrize("name", CONSTANTS_IN_THE_SOURCE_FINE)
def test_lint_accepts_constants_in_the_source(lint_is_clean, name):
    lint_is_clean(CONSTANTS_IN_THE_SOURCE_HEAD + CONSTANTS_IN_THE_SOURCE_FINE[name])
