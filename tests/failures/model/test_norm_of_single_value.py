"""MDL041: norms over one value, and correct programs that look like it."""

import pytest

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
CLASS = """
class Block(nn.Module):
    def __init__(self, width={default}):
        super().__init__()
        {norm}
        self.gru = nn.GRU(width, 8, batch_first=True)

    def forward(self, x):
        return self.gru(self.norm(x))[0]
"""
NORM = "self.norm = nn.LayerNorm(width)"
MARKED = NORM + "  # T"

BROKEN = {
    "a number": "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.norm = nn.LayerNorm(1)  # T\n",
    "a default": CLASS.format(default=1, norm=MARKED) + "model = Block()\n",
    "a constructor's argument": CLASS.format(default=8, norm=MARKED)
    + "class Net(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n        self.a = Block(n)\n"
    "        self.b = Block(16)\nmodel = Net(1)\n",
    "a constant in a list": "N_SENSORS = 1\nmodel = nn.Sequential(nn.LayerNorm([N_SENSORS]))  # T\n",
    "a tuple by name": "def build():\n    return nn.Sequential(nn.LayerNorm(normalized_shape=(1, 1)))  # T\n",
    "a setting": "from dataclasses import dataclass\n@dataclass\nclass Config:\n    channels: int = 1\n"
    "def build(cfg: Config):\n    norm = nn.LayerNorm(cfg.channels)  # T\n"
    "    return nn.Sequential(norm, nn.Linear(1, 4))\n"
    "model = build(Config())\n",
    "behind the last layer": "layers = [nn.Linear(8, 8), nn.Linear(8, 1)]\nlayers.append(nn.LayerNorm(1))  # T\n"
    "model = nn.Sequential(*layers)\n",
    "layers of a comprehension": "sizes = [1, 1]\nnorms = nn.ModuleList([nn.LayerNorm(1) for _ in sizes])  # T\n",
    "the function": "def f(x):\n    return F.layer_norm(x, (1,))  # T\n",
    "RMSNorm": "model = nn.Sequential(nn.RMSNorm(1), nn.Linear(1, 4))  # T\n",
    "as many groups as features": "model = nn.Sequential(nn.Linear(3, 8), nn.GroupNorm(8, 8), nn.ReLU())  # T\n",
}

CORRECT = {
    "a default that an outer class overwrites": CLASS.format(default=1, norm=NORM)
    + "class Net(nn.Module):\n    def __init__(self, n=1):\n        super().__init__()\n        self.a = Block(n)\n"
    "    def forward(self, x):\n        return self.a(x)\nmodel = Net(16)\n",
    "hidden features": CLASS.format(default=8, norm=NORM) + "model = Block()\nhead = nn.Linear(8, 1)\n",
    "1 in another call": CLASS.format(default=8, norm=NORM) + "def head(width):\n    return nn.Linear(8, width)\n"
    "model = nn.Sequential(Block(16), head(1))\n",
    "a default that is overwritten": CLASS.format(default=1, norm=NORM) + "model = Block(8)\n",
    "over time": "T = 40\nmodel = nn.Sequential(nn.LayerNorm([T, 1]), nn.Linear(1, 8))\n",
    "a picture with one channel": "model = nn.Sequential(nn.LayerNorm((1, 28, 28)), nn.Flatten())\n",
    "batch norm": "model = nn.Sequential(nn.BatchNorm1d(1), nn.Conv1d(1, 8, 3))\n",
    "one group": "model = nn.Sequential(nn.Linear(3, 8), nn.GroupNorm(1, 8), nn.ReLU())\n",
    "groups of one channel of a picture": "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(8, 8), nn.ReLU())\n",
    "an instance norm": "model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.InstanceNorm2d(1), nn.ReLU())\n",
    "a condition": CLASS.format(default=1, norm="self.norm = nn.LayerNorm(width) if width > 1 else nn.Identity()")
    + "model = Block()\n",
    "a condition in a statement": CLASS.format(
        default=1, norm="self.norm = nn.Identity()\n        if width > 1:\n            self.norm = nn.LayerNorm(width)"
    )
    + "model = Block()\n",
    "an unknown size": "def build(width):\n    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))\n",
    "an own class": "class LayerNorm(nn.Module):\n    def __init__(self, dim):\n        super().__init__()\n"
    "        self.dim = dim\n    def forward(self, x):\n        return (x - x.mean(self.dim, True)) / x.std(self.dim)\n"
    "model = LayerNorm(1)\n",
    "a list of sizes": "norms = [nn.LayerNorm(n) for n in (8, 16, 1 + 7)]\n",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_lint_reports_norms_over_one_value(lint_reports, script):
    lint_reports(HEAD + script.replace("# T", "# <- MDL041"))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL041")
