"""MDL001: layers that are not registered in their model."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)

def fit(model, steps=8, extra=()):
    optimizer = torch.optim.SGD([*model.parameters(), *extra], lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""

BROKEN = {
    "a list": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 6) for _ in range(3)]  # <- MDL001
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)
fit(Net())
""",
    "a dictionary of blocks": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = {"a": nn.Sequential(nn.Linear(6, 6), nn.Tanh())}  # <- MDL001
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.blocks["a"](x))
fit(Net())
""",
    "a closure": """
def make():
    inner = nn.Linear(6, 6)  # <- MDL001
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 1)
        def forward(self, x):
            return self.head(inner(x))
    return Net()
fit(make())
""",
    "made in forward, once, under bf16": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.late = []
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        if not self.late:
            self.late.append(nn.Linear(6, 6))  # <- MDL001
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = self.late[0](x)
        return self.head(x.float())
fit(Net())
""",
}

CORRECT = {
    "weights collected for the optimizer, in a loop that also initialises them": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 6)]
        self.weights = []
        for layer in self.layers:
            nn.init.zeros_(layer.bias)
            self.weights.extend(layer.parameters())
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.layers[0](x))
net = Net()
fit(net, extra=net.weights)
""",
    "a ModuleList": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)
fit(Net())
""",
    "parameters in the optimizer": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 6)]
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.layers[0](x))
net = Net()
fit(net, extra=net.layers[0].parameters())
""",
    "frozen": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = (nn.Linear(6, 6).requires_grad_(False),)
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.features[0](x))
fit(Net())
""",
    "a random target whose output is detached": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.target = (nn.Sequential(nn.Linear(6, 6), nn.Tanh()),)
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(x) - self.target[0](x).detach().mean(1, keepdim=True)
fit(Net())
""",
    "pretrained, in eval mode, outside the state": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = (nn.Linear(6, 6).eval(),)
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.features[0](x))
fit(Net())
""",
    "a part of it under another name": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.views = [nn.Sequential(self.layer, nn.ReLU())]
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.views[0](x))
fit(Net())
""",
    "two networks, one after the other": """
one, two = nn.Linear(6, 6), nn.Linear(6, 1)
optimizers = [torch.optim.SGD(net.parameters(), lr=0.01) for net in (one, two)]
for _ in range(6):
    for optimizer in optimizers:
        optimizer.zero_grad()
    nn.functional.mse_loss(two(one(x)), y).backward()
    for optimizer in optimizers:
        optimizer.step()
""",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_run_reports_it(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, script):
    run_is_clean(HEAD + script)


def test_block_is_counted_once(run_reports):
    found = run_reports(HEAD + BROKEN["a dictionary of blocks"]).findings[0]
    assert found.message.startswith("A module (Sequential) with 2 parameters")


# The rule --------------------------------------------------------------------------------------------------------

MISSED_BY_LINT = {"a closure"}

NET = """
import copy
EXTRA = []
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)
    def forward(self, x):
        return x + self.fc(x)
def clones(layer, count):
    return [copy.deepcopy(layer) for _ in range(count)]
def noted(layer, count):
    layers = [copy.deepcopy(layer) for _ in range(count)]
    EXTRA.extend(p for layer in layers for p in layer.parameters())
    return layers
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 1)
        {}
    def forward(self, x):
        for layer in self.layers:
            x = {}
        return self.head(x)
"""

LINT_BROKEN = {
    "initial weights of a dictionary": """
class Net(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.parts = {}  # <- MDL001
        for name in names:
            self.parts[name] = nn.Linear(6, 6)
            nn.init.zeros_(self.parts[name].bias)
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(sum(self.parts[name](x) for name in self.parts))
fit(Net(["a", "b"]))
""",
    "initial weights in a loop of their own": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 6) for _ in range(3)]  # <- MDL001
        for layer in self.layers:
            nn.init.xavier_uniform_(layer.weight)
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)
fit(Net())
""",
    "heads for several tasks, in a dictionary": """
class MultiTask(nn.Module):
    def __init__(self, tasks: list[str], width: int = 64) -> None:
        super().__init__()
        self.body = nn.Linear(6, width)
        self.heads = {  # <- MDL001
            "age": nn.Linear(width, 1),  # in years
            "sex": nn.Linear(width, 2),
        }

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.body(x))
        return {name: head(hidden) for name, head in self.heads.items()}

model = MultiTask(["age", "sex"])
""",
    "user-defined blocks, appended": """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x):
        return x + self.fc(self.norm(x))

class Deep(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = []  # <- MDL001
        for _ in range(depth):
            self.blocks.append(Block(width))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = block(x)
        return self.out(x)

fit(Deep(6, 3))
""",
    "with parameters of their own, measured without gradients": """
class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(6))
    def forward(self, x):
        return x * self.factor

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = [Scale() for _ in range(2)]  # <- MDL001
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(sum(scale(x) for scale in self.scales))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(4):
    model.train()
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        print(nn.functional.mse_loss(model(x), y).item())
""",
    "a tuple of convolutions, in a method that forward calls": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = (nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3))  # <- MDL001
        self.fc = nn.Linear(4, 10)

    def features(self, x):
        x = self.convs[0](x).relu()
        return self.convs[1](x).relu()

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))
""",
    "copies of a block": NET.format(
        "block = Block(); self.layers = [copy.deepcopy(block) for _ in range(3)]  # <- MDL001", "layer(x)"
    ),
    "copies of a registered Sequential": NET.format(
        "self.first = nn.Sequential(nn.Linear(6, 6)); self.layers = [copy.deepcopy(self.first) for _ in range(2)]"
        "  # <- MDL001",
        "layer(x)",
    ),
    "copies by a function": NET.format("self.layers = clones(Block(), 3)  # <- MDL001", "layer(x)"),
    "one layer repeated": NET.format("self.layers = [nn.Linear(6, 6)] * 3  # <- MDL001  # <- MDL004", "layer(x)"),
}

PARTS = """
class Net(nn.Module):
    def __init__(self, widths=(6, 6, 6)):
        super().__init__()
        layers = [nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:])]
        sequence = []
        for number, layer in zip(range(2), layers):
            {filled}
        self.body = nn.Sequential({given})
        self.layers = layers{note}
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        found = []
        for layer in self.layers:
            x = layer(x).relu()
            found.append(x)
        return self.head(x)
fit(Net())
"""
LINT_BROKEN["other layers are registered"] = PARTS.format(
    filled="sequence.append(nn.ReLU())", given="*sequence", note="  # <- MDL001"
)
LINT_BROKEN["the other list is not registered either"] = PARTS.format(
    filled="sequence.append(layer)", given="nn.ReLU()", note="  # <- MDL001"
)
LINT_CORRECT = {
    "registered in a sequence too": PARTS.format(
        filled="sequence.append(layer)\n            sequence.append(nn.ReLU())", given="*sequence", note=""
    ),
    "registered in a sequence, several at once": PARTS.format(
        filled="sequence.extend([layer, nn.ReLU()])", given="*sequence", note=""
    ),
    "registered copies": NET.format("self.layers = nn.ModuleList(clones(Block(), 3))", "layer(x)"),
    "one registered layer repeated": NET.format(
        "self.first = nn.Linear(6, 6); self.layers = [self.first] * 3", "layer(x)"
    ),
    "shallow copies share registered parameters": NET.format(
        "self.first = nn.Linear(6, 6); self.layers = [copy.copy(self.first) for _ in range(3)]", "layer(x)"
    ),
    "a frozen copy": NET.format(
        "self.first = Block(); self.layers = [copy.deepcopy(self.first).requires_grad_(False)]", "layer(x)"
    ),
    "copies of a frozen block": NET.format("self.layers = clones(Block().requires_grad_(False), 2)", "layer(x)"),
    "a teacher in eval mode": NET.format(
        "self.first = Block(); self.layers = [copy.deepcopy(self.first).eval()]", "layer(x)"
    ),
    "copies that other code has too": NET.format("self.layers = noted(Block(), 2)", "layer(x)")
    + "fit(Net(), extra=EXTRA)",
    "copies with their own optimizer": NET.format("self.layers = clones(Block(), 2)", "layer(x)")
    + """
net = Net()
fit(net, extra=[p for layer in net.layers for p in layer.parameters()])
""",
    "registered one by one": """
class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = [nn.Linear(6, 6) for _ in range(depth)]
        for number, layer in enumerate(self.layers):
            self.add_module(f"layer{number}", layer)
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
fit(Net(3))
""",
    "a ModuleList from a list": """
class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        layers = [nn.Linear(6, 6) for _ in range(depth)]
        self.kept = layers
        self.layers = nn.ModuleList(layers)
    def forward(self, x):
        for layer in self.kept:
            x = layer(x)
        return x
fit(Net(3))
""",
    "parameters yielded explicitly": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 6), nn.Linear(6, 1)]
    def parameters(self, recurse=True):
        for layer in self.layers:
            yield from layer.parameters()
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
    "an ensemble that is no module": """
class Ensemble:
    def __init__(self, count):
        self.nets = [nn.Linear(6, 1) for _ in range(count)]
        self.optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in self.nets]
    def __call__(self, x):
        return torch.stack([net(x) for net in self.nets]).mean(0)
""",
    "features of a frozen network, in a tuple": """
import torchvision
class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = (torchvision.models.vgg16(weights="DEFAULT").features.eval(),)
    def forward(self, a, b):
        return (self.net[0](a) - self.net[0](b)).abs().mean()
""",
    "a third-party network outside the state": """
class Student(nn.Module):
    def __init__(self, teacher: nn.Module):
        super().__init__()
        self.teacher = [teacher]
        self.own = nn.Linear(6, 1)
    def forward(self, x):
        return self.own(x) - self.teacher[0](x)
""",
    "layers without weights": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = [nn.ReLU(), nn.Dropout(0.1), nn.MaxPool1d(2)]
        self.fc = nn.Linear(6, 1)
    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return self.fc(x)
""",
    "a Sequential from a list": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(6, 6), nn.ReLU()]
        self.layers += [nn.Linear(6, 1)]
        self.net = nn.Sequential(*self.layers)
    def forward(self, x):
        return self.net(x)
fit(Net())
""",
    "stepped by its own optimizer": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.aside = [nn.Linear(6, 6)]
        self.head = nn.Linear(6, 1)
    def forward(self, x):
        return self.head(self.aside[0](x))
net = Net()
slow = torch.optim.SGD(net.aside[0].parameters(), lr=1e-4)
fit(net)
""",
    "called without gradients": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.random = [nn.Linear(6, 6)]
        self.head = nn.Linear(6, 6)
    def forward(self, x):
        with torch.no_grad():
            target = self.random[0](x)
        return (self.head(x) - target).square().mean()
""",
}


@pytest.mark.parametrize("name", [*(name for name in BROKEN if name not in MISSED_BY_LINT), *LINT_BROKEN])
def test_lint_reports_it(lint_reports, name):
    script = {**BROKEN, **LINT_BROKEN}[name]
    if "self.late = []" in script:  # the linter names the list, a run the line that adds the layer
        script = script.replace("  # <- MDL001", "").replace("self.late = []", "self.late = []  # <- MDL001")
    lint_reports(HEAD + script)


@pytest.mark.parametrize("name", [*MISSED_BY_LINT, *CORRECT, *LINT_CORRECT])
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(HEAD + {**BROKEN, **CORRECT, **LINT_CORRECT}[name])


def test_fix_turns_the_list_into_a_module_list(lint_reports):
    from trueloop.core.source_text import SourceText, apply_fixes

    text = HEAD + BROKEN["a list"]
    (finding,) = lint_reports(text)
    fixed = apply_fixes(SourceText(text), [finding.autofix])[0].source
    assert "self.layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])  # <- MDL001\n" in fixed


# Stored under computed keys ---------------------------------------------------------------------------------------

STORED_UNDER_COMPUTED_KEYS_HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
data = TensorDataset(x, y)
"""

STORED_UNDER_COMPUTED_KEYS = {
    "a dictionary filled in a loop": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)
        heads = {}
        for name in ("a", "b"):
            heads[name] = nn.Linear(4, 1)
        self.heads = heads  # <- MDL001

    def forward(self, inputs):
        hidden = self.body(inputs)
        return sum(head(hidden) for head in self.heads.values())

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    optimizer.step()
""",
    "an attribute filled in a loop and read by key": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.heads = {}  # <- MDL001
        for name in ("a", "b"):
            self.heads[name] = nn.Linear(4, 1)

    def describe(self):
        return f"{len(self.heads)} heads: {sorted(self.heads.keys())}"

    def forward(self, inputs, key="a"):
        return self.heads[key](self.body(inputs))

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    optimizer.step()
""",
    "layers that a function makes": """
def expert(width):
    return nn.Sequential(nn.Linear(width, 4), nn.ReLU())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = {}  # <- MDL001
        for name in ("a", "b"):
            self.experts[name] = expert(6)
        self.head = nn.Linear(4, 1)

    def forward(self, inputs, key="a"):
        return self.head(self.experts[key](inputs))

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    optimizer.step()
""",
}

STORED_UNDER_COMPUTED_KEYS_FINE = {
    "an attribute whose layers are registered, too": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)
        self.heads = {}
        for name in ("a", "b"):
            self.heads[name] = nn.Linear(4, 1)
        self.registered = nn.ModuleList(self.heads.values())

    def forward(self, inputs, key="a"):
        return self.heads[key](self.body(inputs))

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    optimizer.step()
""",
    "an attribute whose layers get their own names": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = {}
        for name in ("a", "b"):
            self.heads[name] = nn.Linear(6, 1)
            self.add_module(f"head_{name}", self.heads[name])

    def forward(self, inputs, key="a"):
        return self.heads[key](inputs)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    optimizer.step()
""",
    "a dictionary that is registered": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)
        heads = {}
        for name in ("a", "b"):
            heads[name] = nn.Linear(4, 1)
        self.heads = nn.ModuleDict(heads)

    def forward(self, inputs):
        hidden = self.body(inputs)
        return sum(head(hidden) for head in self.heads.values())

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for k in torch.randperm(96).split(16):
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x[k]), y[k]).backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("name", STORED_UNDER_COMPUTED_KEYS)
def test_lint_reports_stored_under_computed_keys(lint_reports, name):
    lint_reports(STORED_UNDER_COMPUTED_KEYS_HEAD + STORED_UNDER_COMPUTED_KEYS[name])


@pytest.mark.parametrize("name", STORED_UNDER_COMPUTED_KEYS_FINE)
def test_lint_accepts_stored_under_computed_keys(lint_is_clean, name):
    lint_is_clean(STORED_UNDER_COMPUTED_KEYS_HEAD + STORED_UNDER_COMPUTED_KEYS_FINE[name])
