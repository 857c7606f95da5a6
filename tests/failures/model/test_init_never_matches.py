"""MDL028: functions for ``apply`` that match no layer."""

import pytest

HEAD = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
"""
FAULTY = {
    "is": """
def init(m):
    if m is nn.Linear:  # <- MDL028
        nn.init.normal_(m.weight)
model.apply(init)
""",
    "one of several": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)
        self.apply(self._init_weights)
    def _init_weights(self, module):
        if module in (nn.Linear, nn.Conv2d):  # <- MDL028
            nn.init.normal_(module.weight)
    def forward(self, x):
        return self.fc(x)
""",
    "a text": """
def init(m):
    if type(m) == "Linear":  # <- MDL028
        nn.init.normal_(m.weight)
model.apply(init)
""",
    "a loop": """
for name, layer in model.named_modules():
    if layer == nn.Linear or layer == nn.Conv2d:  # <- MDL028  # <- MDL028
        nn.init.normal_(layer.weight)
""",
}
FAULTY["a loop"] = FAULTY["a loop"].replace(" or layer == nn.Conv2d:  # <- MDL028", ":")
CORRECT = {
    "isinstance": """
def init(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight)
model.apply(init)
""",
    "the type": """
def init(m):
    if type(m) == nn.Linear or type(m) in (nn.Conv2d, nn.Conv1d):
        nn.init.normal_(m.weight)
model.apply(init)
""",
    "the name of the type": """
def init(m):
    if m.__class__.__name__ == "Linear" or type(m).__name__.find("Conv") != -1:
        nn.init.normal_(m.weight)
model.apply(init)
""",
    "another layer": """
for layer in model.children():
    if layer is model[0]:
        nn.init.normal_(layer.weight)
""",
    "a class among classes": """
def build(kind):
    if kind == nn.Linear:
        return nn.Linear(8, 1)
    return kind(8, 8, 3)
build(nn.Linear)
""",
    "apply of a table": """
def convert(value):
    return value == "Linear"
table.apply(convert)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_comparison(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL028")
