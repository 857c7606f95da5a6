"""ENV011: constants in the place of arguments."""

import pytest

HEAD = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

"""
FAULTY = {
    "an attribute": """
class Trainer:
    def __init__(self, model, weight_decay=0.1, device="cpu"):
        self.model, self.device = model.to(device), device
        self.weight_decay = 0.01  # <- ENV011
    def build(self):
        return torch.optim.AdamW(self.model.parameters(), weight_decay=self.weight_decay)
""",
    "a private attribute with the default": """
class Penalty(nn.Module):
    def __init__(self, scale=1.0, normalise=True):
        super().__init__()
        self._scale = 1.0  # <- ENV011
        self.normalise = normalise
    def forward(self, out):
        return self._scale * out.square().mean()
""",
    "a keyword": """
def make_loader(data, batch_size, shuffle=False):
    return DataLoader(data, batch_size=batch_size, shuffle=True)  # <- ENV011
""",
    "a seed": """
def split(n, share, seed=0):
    rng = np.random.default_rng(seed=42)  # <- ENV011
    order = rng.permutation(n)
    return order[: int(share * n)], order[int(share * n) :]
""",
    "an evaluation mode in the constructor": """
class Judge:
    def __init__(self, model, temperature):
        self.temperature = 10.0  # <- ENV011
        self.model = model.eval()
""",
    "an option that a path replaces": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--settings", default="small.json")
args = parser.parse_args()
print(args)
args.settings = "runs/large.json"  # <- ENV011
text = open(args.settings).read()
""",
    "an option that another one gives": """
import argparse
def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    parser.add_argument("--rounds", type=int)
    return parser.parse_args()
def main():
    options = parse()
    model = nn.Linear(3, 1)
    options.steps = options.rounds * 100  # <- ENV011
    return model, options
""",
    "a copy of an option": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--ramp", type=int, default=100)
args, rest = parser.parse_known_args()
def main(loader):
    ramp = args.ramp
    total = 10 * len(loader)
    ramp = int(0.05 * total)  # <- ENV011
    return [min(1.0, step / ramp) for step in range(total)]
""",
    "a variable that is replaced at the start": """
def fit(model, loader, lr, epochs=10):
    \"\"\"Train a model.\"\"\"
    lr = 1e-3  # <- ENV011
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
""",
}
CORRECT = {
    "a parser without this option": """
import argparse
def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    return parser.parse_args()
def demo():
    args = argparse.ArgumentParser().parse_args()
    args.steps = 3
    return args.steps
def main():
    return options().steps
""",
    "the argument": """
class Trainer:
    def __init__(self, model, weight_decay=0.1, steps=None):
        self.model, self.weight_decay = model, weight_decay
        self.steps = 10 if steps is None else steps
""",
    "read before it is replaced": """
def fit(model, lr, epochs):
    print(lr)
    lr = 1e-3
    if epochs is None:
        epochs = 10
    return lr, epochs
""",
    "an argument for old callers": """
class Net(nn.Module):
    def __init__(self, width, bias=True):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.bias = False  # the argument is deprecated
""",
    "a method of a base class": """
class Sampler(Base):
    def sample(self, count, train=False):
        return self.run(count, train=False)
""",
    "an attribute that starts empty": """
class Recorder:
    def __init__(self, history=None, best=None, name=""):
        self.history, self.best = [], None
        self.name = ""
""",
    "all arguments at once": """
class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        settings = locals()
        self.depth = 3
""",
    "a branch": """
def make_loader(data, train, shuffle=True):
    if train:
        return DataLoader(data, shuffle=shuffle)
    return DataLoader(data, shuffle=False)
""",
    "an option that is read first": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
args = parser.parse_args()
if args.steps is None:
    args.steps = 100
limit = 2 * args.steps
args.steps = 7
args.steps = args.steps + 1
""",
    "an option of a launcher": """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--port", type=int)
args = parser.parse_args()
args.local_rank = 0
args.port = int(os.environ["PORT"])
""",
    "an option that all are read with": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
args = parser.parse_args()
train(args)
args.steps = 7
""",
    "options in a notebook": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
args = parser.parse_args([])
args.steps = 7
""",
    "a copy that is read": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
args = parser.parse_args()
steps = args.steps
if not steps:
    steps = 10
steps = steps + 1
""",
    "a copy of an option that is read elsewhere": """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
args = parser.parse_args()
steps = args.steps
steps = 3
print(args.steps)
""",
    "computed from other arguments": """
def fit(model, data, steps, epochs=10):
    steps = epochs * len(data)
    return steps
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_constant(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "ENV011")


INHERITED = """
class Text(nn.Module):
    def draw(self, count):
        return self.step(count, greedy=True)

class Poem(Text):
    def draw(self, count, greedy=False):
        return self.step(count, greedy=True)
"""


def test_lint_accepts_methods_of_derived_classes(lint_is_clean):
    lint_is_clean(HEAD + INHERITED, "ENV011")


@pytest.mark.parametrize(
    "changes",
    [
        ("def draw(self, count):", "def draw(self, count, greedy):"),
        ("Text(nn.Module)", "Text(Base)"),
        ("Poem(Text)", "Poem(Lines)"),
        ("greedy=True)  #", "greedy=greedy)  #"),
    ],
)
def test_lint_accepts_arguments_of_base_classes(lint_is_clean, changes):
    script = INHERITED.replace(*changes).replace("  # <- ENV011", "").replace("count, greedy=True)", "count, True)", 1)
    lint_is_clean("import torch\nfrom torch import nn\n" + script, "ENV011")


LOST = """
import torch
def main(loss, loader, model, optimizer):
    for stage in range(3):
        if loss == 2:  # <- ENV011
            criterion = Mixed(stage)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"loss == 2": 'loss == "ssim"'},
        {"def main(loss,": 'loss = input("loss: ")\ndef main(', "    for stage": "    global loss\n    for stage"},
        {"        if loss == 2:": "        alpha = 1 - stage / 3 if stage and loss == 2 else 1.0\n        if alpha:"},
    ],
)
def test_lint_reports_a_setting_that_the_loss_overwrites(lint_reports, changes):
    script = LOST if "        if loss == 2:" not in changes else LOST.replace("  # <- ENV011", "")
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    lint_reports(script if "# <-" in script else script.replace("else 1.0", "else 1.0  # <- ENV011"))


@pytest.mark.parametrize(
    "changes",
    [
        {"loss = criterion": "value = criterion", "loss.backward": "value.backward"},
        {"loss == 2": "loss == 0"},
        {"    for stage in range(3):\n        if": "    for stage in range(3):\n        loss = stage\n        if"},
        {"    for stage in range(3):\n        if loss == 2:\n            c": "    for _ in range(1):\n        c"},
        {"loss == 2": "stage == 2"},
    ],
)
def test_lint_ignores_other_comparisons(lint_is_clean, changes):
    script = LOST.replace("  # <- ENV011", "")
    for old, new in changes.items():
        assert old in script
        script = script.replace(old, new)
    lint_is_clean(script, "ENV011")


WITHOUT_EFFECT = {
    "the only caller passes the constant": """
class Pair(nn.Module):
    def __init__(self, size, batch_first=True):
        super().__init__()
        self.lstm = nn.LSTM(size, size, batch_first=False)
pair = Pair(8, batch_first=False)
""",
    "a base class that sets attributes by their names": """
class Settings:
    def load(self, values):
        for key, value in values.items():
            setattr(self, key, value)
class Own(Settings):
    def __init__(self, adapters=False):
        self.adapters = False
own = Own(adapters=True)
""",
    "settings of a library": """
from transformers import PretrainedConfig
class Own(PretrainedConfig):
    def __init__(self, adapters=False, **kwargs):
        super().__init__(**kwargs)
        self.adapters = False
own = Own(adapters=True)
""",
}
WITH_EFFECT = {
    "one caller passes another value": """
class Pair(nn.Module):
    def __init__(self, size, batch_first=True):
        super().__init__()
        self.lstm = nn.LSTM(size, size, batch_first=False)  # <- ENV011
pairs = Pair(8, batch_first=False), Pair(8, batch_first=True)
""",
    "one caller relies on the default": """
class Pair(nn.Module):
    def __init__(self, size, batch_first=True):
        super().__init__()
        self.lstm = nn.LSTM(size, size, batch_first=False)  # <- ENV011
pairs = Pair(8, batch_first=False), Pair(8)
""",
    "a base class that sets one attribute": """
class Settings:
    def load(self, value):
        setattr(self, "rate", value)
class Own(Settings):
    def __init__(self, adapters=False):
        self.adapters = False  # <- ENV011
own = Own(adapters=True)
""",
}


@pytest.mark.parametrize("script", WITHOUT_EFFECT.values(), ids=WITHOUT_EFFECT)
def test_lint_accepts_constants_without_an_effect(lint_codes, script):
    assert "ENV011" not in lint_codes(HEAD + script)


@pytest.mark.parametrize("script", WITH_EFFECT.values(), ids=WITH_EFFECT)
def test_lint_reports_constants_with_an_effect(lint_reports, script):
    lint_reports(HEAD + script)
