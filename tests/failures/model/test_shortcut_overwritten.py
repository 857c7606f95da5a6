"""MDL039: in-place activations of the tensor that a residual connection adds."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
"""
BLOCK = """
class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3), nn.Conv2d(c, c, 3)
        self.bn = nn.BatchNorm2d(c)
    def forward(self, x):
        %s
"""
FAULTY = {
    "the first activation": BLOCK
    % "out = self.conv1(self.relu(x))  # <- MDL039\n        out = self.conv2(out)\n        return out + x",
    "a function": BLOCK
    % "h = F.leaky_relu(x, 0.1, inplace=True)  # <- MDL039\n        h = self.conv1(h)\n        h += x\n"
    "        return h",
    "a Sequential": """
class Op(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(nn.ReLU(True), nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c))
    def forward(self, x):
        y = self.body(x)  # <- MDL039
        return torch.add(x, y)
""",
}
CORRECT = {
    "after a normalisation": BLOCK % "out = self.conv1(self.relu(self.bn(x)))\n        return out + x",
    "at the end": BLOCK % "out = self.conv1(x)\n        out = self.conv2(self.relu(out))\n        out += x\n"
    "        return self.relu(out)",
    "the shortcut begins after it": BLOCK % "x = self.relu(x)\n        return x + self.conv1(x)",
    "a copy is added": BLOCK % "kept = x.clone()\n        out = self.conv1(self.relu(x))\n        return out + kept",
    "not in place": (BLOCK % "out = self.conv1(self.relu(x))\n        return out + x").replace("inplace=True", ""),
    "no shortcut": BLOCK % "out = self.conv1(self.relu(x))\n        return self.conv2(out) + 1",
    "a new variable of the name": BLOCK
    % "out = self.conv1(self.relu(x))\n        x = self.conv2(out)\n        return out + x",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_changed_shortcuts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_activations(lint_is_clean, script):
    lint_is_clean(HEAD + script)
