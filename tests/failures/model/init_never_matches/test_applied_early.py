"""MDL028: initialisers that are applied before the layers exist."""

import pytest

HEAD = """
import torch
from torch import nn


def init_weights(m):
    if isinstance(m, (nn.Linear, nn.Conv2d)):
        nn.init.kaiming_normal_(m.weight)


class Base(nn.Module):
    def _init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
"""
FAULTY = {
    "method": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.apply(self._init)  # <- MDL028
        self.fc1 = nn.Linear(10, 32)
        self.fc2 = nn.Linear(32, 2)

    def _init(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))
""",
    "function": """
class ConvNet(torch.nn.Module):
    def __init__(self, width):
        super(ConvNet, self).__init__()
        self.width = int(width)
        self.act = nn.ReLU()
        self.apply(init_weights)  # <- MDL028
        self.body = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3))

    def forward(self, x):
        return self.act(self.body(x))
""",
    "a loop over modules": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.reset_parameters()  # <- MDL028
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def reset_parameters(self):
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.orthogonal_(m.weight)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
""",
    "a method that applies": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.init_weights()  # <- MDL028
        self.fc = nn.Linear(8, 8)

    def init_weights(self):
        self.apply(init_weights)

    def forward(self, x):
        return self.fc(self.norm(x))
""",
    "parameters": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.init()  # <- MDL028
        self.rnn = nn.GRU(8, 8)

    def init(self):
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, x):
        return self.rnn(x)[0]
""",
    "an inner function": """
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()

        def init(m):
            if type(m) == nn.Linear:
                m.weight.data.normal_(0, 0.02)

        self.apply(init)  # <- MDL028
        self.net = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x):
        return self.net(x)
""",
    "most layers": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 8)
        self.apply(init_weights)  # <- MDL028
        self.fc2 = nn.Linear(8, 8)
        self.fc3 = nn.Linear(8, 1)

    def forward(self, x):
        return self.fc3(self.fc2(self.fc1(x)))
""",
}
CORRECT = {
    "last": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 32)
        self.fc2 = nn.Linear(32, 2)
        self.apply(init_weights)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))
""",
    "a new head": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 32)
        self.fc2 = nn.Linear(32, 32)
        self.apply(init_weights)
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.fc2(self.fc1(x)))
""",
    "layers of the base class": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.apply(self._init_weights)
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x)
""",
    "layers of other classes": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x)


class Net(nn.Module):
    def __init__(self, build):
        super().__init__()
        self.block = Block()
        self.apply(init_weights)
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(self.block(x))


class Built(nn.Module):
    def __init__(self):
        super().__init__()
        self.build()
        self.apply(init_weights)
        self.fc = nn.Linear(8, 8)

    def build(self):
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(self.inner(x))
""",
    "a part that exists": """
class Net(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.apply(init_weights)
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(self.encoder(x))
""",
    "no initialiser": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.number = self.count()
        self.count()
        self.fc = nn.Linear(8, 8)

    def count(self):
        return sum(p.numel() for p in self.parameters())

    def forward(self, x):
        return self.fc(x)
""",
    "a loaded part": """
class Net(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.apply(init_weights)
        self.encoder = encoder

    def forward(self, x):
        return self.encoder(x)
""",
    "initialised on their own": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.apply(init_weights)
        self.fc = nn.Linear(8, 8)
        nn.init.zeros_(self.fc.weight)

    def forward(self, x):
        return self.fc(x)
""",
    "other layers": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.apply(init_weights)
        self.embedding = nn.Embedding(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.fc(self.embedding(x)))
""",
    "applied from outside": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.apply(init_weights)
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x)


net = Net()
net.apply(init_weights)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_initialisers_that_run_too_early(lint_reports, script):
    lint_reports(HEAD + script, fixes=True)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL028")
