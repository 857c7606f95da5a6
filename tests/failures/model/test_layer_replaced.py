"""MDL026: layers that are replaced by others of the same name."""

import pytest

HEAD = """
import torch
from collections import OrderedDict
from torch import nn
"""
FAULTY = {
    "an attribute": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.act = nn.ReLU()
        self.conv1 = nn.Conv2d(8, 8, 3)  # <- MDL026
    def forward(self, x):
        return self.conv1(x)
""",
    "a key": """
model = nn.Sequential(OrderedDict({
    "fc": nn.Linear(8, 8),
    "act": nn.ReLU(),
    "fc": nn.Linear(8, 2),  # <- MDL026
}))
""",
    "a name in a loop": """
class Net(nn.Module):
    def __init__(self, depth):
        super().__init__()
        for i in range(depth):
            self.add_module("hidden", nn.Linear(8, 8))  # <- MDL026
        self.out = nn.Linear(8, 2)
    def forward(self, x):
        for each in self.children():
            x = each(x)
        return x
""",
    "a sequence in a loop": """
model = nn.Sequential()
for i in range(3):
    model.add_module("hidden", nn.Linear(8, 8))  # <- MDL026
    model.add_module(f"act{i}", nn.ReLU())
""",
}
CORRECT = {
    "one activation for both places": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.second(self.relu(self.first(x))))
""",
    "names of their own": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3)
        self.conv2 = nn.Conv2d(8, 8, 3)
    def forward(self, x):
        return self.conv2(self.conv1(x))
""",
    "wrapped": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.conv = nn.utils.spectral_norm(self.conv)
        self.conv = nn.Sequential(self.conv, nn.ReLU())
    def forward(self, x):
        return self.conv(x)
""",
    "an empty container": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential()
        layers = [nn.Linear(8, 8), nn.ReLU()]
        self.body = nn.Sequential(*layers)
    def forward(self, x):
        return self.body(x)
""",
    "branches": """
class Net(nn.Module):
    def __init__(self, deep):
        super().__init__()
        if deep:
            self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        else:
            self.body = nn.Linear(8, 2)
    def forward(self, x):
        return self.body(x)
""",
    "kept in between": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = []
        self.fc = nn.Linear(8, 8)
        layers.append(self.fc)
        self.fc = nn.Linear(8, 2)
        layers.append(self.fc)
        self.layers = nn.ModuleList(layers)
    def forward(self, x):
        for each in self.layers:
            x = each(x)
        return x
""",
    "a method in between": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.store()
        self.fc = nn.Linear(8, 2)
    def forward(self, x):
        return self.fc(x)
""",
    "numbered names": """
model = nn.Sequential()
for i in range(3):
    model.add_module("hidden" + str(i), nn.Linear(8, 8))
    model.add_module(f"act{i}", nn.ReLU())
""",
    "a new model in each turn": """
models = []
for i in range(3):
    model = nn.Sequential()
    model.add_module("hidden", nn.Linear(8, 8))
    models.append(model)
""",
    "a dictionary of functions": """
activations = {"relu": nn.ReLU(), "tanh": nn.Tanh()}
settings = {"a": 1, "a": 1}
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_second_layer(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL026")
