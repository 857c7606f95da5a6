"""MDL012: layers that every forward call creates."""

import pytest

CLASS = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
        self.head = nn.Linear(size, 1)
"""

BROKEN = {
    "called on the spot": """
    def forward(self, x):
        x = F.relu(nn.Linear(8, self.size)(x))  # <- MDL012
        return self.head(x)
""",
    "under a name, moved": """
    def forward(self, x):
        conv = nn.Conv2d(3, self.size, kernel_size=(1, 3)).cuda()  # <- MDL012
        first = nn.Conv2d(self.size, 8, 1).to(x.device)  # <- MDL012
        return self.head(first(conv(x)).mean((2, 3)))
""",
    "assigned to the model in every call": """
    def forward(self, x):
        h = x.flatten(1)
        self.out = nn.Sequential(
            nn.Linear(h.shape[1], 512),  # <- MDL012
            nn.ReLU(),
        )
        return self.head(self.out(h))
""",
    "in a loop": """
    def forward(self, x):
        for width in (8, 8, 8):
            x = torch.tanh(nn.Linear(width, width)(x))  # <- MDL012
        return self.head(x)
""",
    "a sequential called on the spot": """
    def forward(self, x):
        return self.head(nn.Sequential(nn.Dropout(0.1), nn.Linear(4, self.size))(x))  # <- MDL012
""",
    "a parameter": """
    def forward(self, x):
        scale = nn.Parameter(torch.ones(x.shape[1]))  # <- MDL012
        return self.head(x * scale)
""",
    "a parameter of the model, in every call": """
    def forward(self, x):
        self.prompt = nn.Parameter(torch.randn(1, self.size))  # <- MDL012
        return self.head(x + self.prompt)
""",
    "dropout called on the spot": """
    def forward(self, x):
        return self.head(nn.Dropout(0.5)(x))  # <- MDL012
""",
    "dropout under a name": """
    def forward(self, x):
        drop = nn.Dropout2d(p=self.size / 100)  # <- MDL012
        return self.head(drop(x))
""",
    "a recurrent one": """
    def forward(self, x):
        rnn = nn.LSTM(8, self.size, batch_first=True)  # <- MDL012
        steps, _ = rnn(x)
        return self.head(steps[:, -1])
""",
    "in a method, after an early return": """
    def shortcut(self, x):
        if x.shape[-1] == self.size:
            return x
        project = nn.Linear(x.shape[-1], self.size, bias=False)  # <- MDL012
        return project(x)

    def forward(self, x):
        return self.head(self.shortcut(x))
""",
    "in a method of a method": """
    def inner(self, x):
        self.mix = nn.Linear(8, 8)  # <- MDL012
        return self.mix(x)

    def encode(self, x):
        return self.inner(x).relu()

    def forward(self, x):
        return self.head(self.encode(x))
""",
    "in a function": """
    def forward(self, x):
        return self.head(dense(x, self.size))

def dense(x, width):
    return torch.relu(nn.Linear(x.shape[1], width)(x))  # <- MDL012
""",
    "where the sizes differ": """
    def forward(self, x):
        if x.shape[1] != self.size:
            match = nn.Conv1d(x.shape[1], self.size, 1)  # <- MDL012
            x = match(x)
        return self.head(x.mean(2))
""",
}

CORRECT = {
    "dropout in the mode of the module": """
    def forward(self, x):
        x = nn.Dropout(p=0.1).train(self.training)(x)
        if self.training:
            x = nn.Dropout(0.2)(x)
        drop = nn.Dropout(0.5)
        drop.training = self.training
        return self.head(drop(x))
""",
    "layers without random weights": """
    def forward(self, x):
        x = nn.ReLU()(nn.LayerNorm(x.shape[1:])(x))
        return nn.Dropout(0.0)(nn.MaxPool1d(2)(x)), nn.CrossEntropyLoss()(x - 1, x), nn.BatchNorm1d(8)(x)
""",
    "created once, when the size is known": """
    def forward(self, x):
        if self.first is None:
            self.first = nn.Linear(x.shape[1], self.size).to(x.device)
        return self.head(self.first(x))
""",
    "created once, with an early return": """
    def forward(self, x):
        if hasattr(self, "first"):
            return self.head(self.first(x))
        self.first = nn.Linear(x.shape[1], self.size)
        return self.head(self.first(x))
""",
    "a parameter created once": """
    def forward(self, x):
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(x.shape[1]))
        return self.head(x * self.scale)
""",
    "a parameter that is not trained": """
    def forward(self, x):
        scale = nn.Parameter(torch.ones(x.shape[1]), requires_grad=False)
        return self.head(x * scale)
""",
    "a change of the input that forward optimises": """
    def forward(self, x):
        delta = nn.Parameter(torch.zeros_like(x))
        (gradient,) = torch.autograd.grad(self.head(x + delta).sum(), delta)
        return self.head(x + 0.1 * gradient.sign())
""",
    "a filter": """
    def forward(self, x):
        sobel = nn.Conv2d(1, 1, 3, bias=False)
        sobel.weight.data = self.kernel
        return sobel(x)
""",
    "weights set by a function": """
    def forward(self, x):
        layer = nn.Linear(8, 8)
        nn.init.orthogonal_(layer.weight)
        return layer(x)
""",
    "an augmentation without gradients": """
    def forward(self, x):
        with torch.no_grad():
            noise = nn.Conv2d(3, 3, 3, padding=1)(x)
        return self.head(noise)
""",
    "frozen": """
    def forward(self, x):
        return self.head(nn.Conv2d(3, 3, 3).requires_grad_(False)(x))
""",
    "passed on": """
    def forward(self, sizes):
        layer = nn.Linear(*sizes)
        self.made.append(layer)
        return layer(self.x)
""",
    "created once, by a method": """
    def build(self, x):
        self.first = nn.Linear(x.shape[1], self.size)
        return self.first(x)

    def forward(self, x):
        if self.first is None:
            return self.head(self.build(x))
        return self.head(self.first(x))
""",
    "made and returned by a method": """
    def make(self, width):
        layer = nn.Linear(width, self.size)
        return layer

    def forward(self, x):
        if self.first is None:
            self.first = self.make(x.shape[1])
        return self.head(self.first(x))
""",
    "random features of a method": """
    def jitter(self, x):
        return nn.Conv2d(3, 3, 3)(x)

    def forward(self, x):
        with torch.no_grad():
            x = self.jitter(x)
        return self.head(x)
""",
    "an augmentation in train mode": """
    def forward(self, x):
        if self.training:
            x = nn.Conv2d(3, 3, 3)(x)
        if torch.rand(()) < 0.5:
            x = nn.Conv2d(3, 3, 5)(x)
        return self.head(x)
""",
    "another method creates a layer": """
    def widen(self, x):
        self.head = nn.Linear(self.size, 2)
        return self.head(x)

    def forward(self, x):
        return self.head(x)
""",
    "a network that makes networks": """
    def forward(self, spec):
        return nn.Sequential(*[nn.Linear(a, b) for a, b in spec])
""",
    "decorated": """
    @torch.no_grad()
    def forward(self, x):
        return nn.Linear(8, 8)(x)
""",
    "chosen": """
    def forward(self, x, project=None):
        project = project or nn.Linear(8, 8)
        return (project if self.size else nn.Linear(8, 8))(x)
""",
    "created in __init__": """
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.first = self.body(torch.zeros(8))

    def forward(self, x):
        return self.head(self.body(x))
""",
}


@pytest.mark.parametrize("method", BROKEN.values(), ids=BROKEN)
def test_lint_reports_it(lint_reports, method):
    assert "a new `nn." in lint_reports(CLASS + method)[0].message


@pytest.mark.parametrize("method", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(lint_is_clean, method):
    lint_is_clean(CLASS + method, "MDL012")


def test_function_named_forward_is_not_reported(lint_is_clean):
    lint_is_clean(
        "import torch\nfrom torch import nn\nModule = 1\ndef forward(x):\n    return nn.Linear(2, 2)(x)\n", "MDL012"
    )


OWN = """
import torch
from torch import nn

class Mix(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        return x @ self.weight

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)
"""
OWN_LAYERS = {
    "called at once": """
    def forward(self, x):
        x = Mix(x.size(1))(x)  # <- MDL012
        return self.head(x)
""",
    "in a variable, moved": """
    def forward(self, x):
        mix = Mix(8).to(x.device)  # <- MDL012
        return self.head(mix(x))
""",
    "in a function that forward calls": """
    def forward(self, x):
        return self.head(self.mixed(x))

    def mixed(self, x):
        return torch.relu(Mix(8)(x))  # <- MDL012
""",
}
OTHER_LAYERS = {
    "created in __init__": OWN + """
        self.mix = Mix(8)

    def forward(self, x):
        return self.head(self.mix(x))
""",
    "without weights": OWN.replace("nn.Parameter(torch.randn(width, width))", "width ** -0.5").replace("@", "*")
    + OWN_LAYERS["called at once"].replace("  # <- MDL012", ""),
    "with fixed weights": OWN.replace("torch.randn(width, width))", "torch.randn(width, width), requires_grad=False)")
    + OWN_LAYERS["called at once"].replace("  # <- MDL012", ""),
    "no module": OWN.replace("Mix(nn.Module)", "Mix") + OWN_LAYERS["called at once"].replace("  # <- MDL012", ""),
    "kept": OWN + """
        self.mix = None

    def forward(self, x):
        if self.mix is None:
            self.mix = Mix(x.size(1))
        return self.head(self.mix(x))
""",
}  # fmt: skip


@pytest.mark.parametrize("method", OWN_LAYERS.values(), ids=OWN_LAYERS)
def test_lint_reports_layers_of_the_program(lint_reports, method):
    assert "a new `Mix`" in lint_reports(OWN + method)[0].message


@pytest.mark.parametrize("script", OTHER_LAYERS.values(), ids=OTHER_LAYERS)
def test_lint_accepts_other_layers(lint_is_clean, script):
    lint_is_clean(script, "MDL012")
