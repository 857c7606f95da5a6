"""MDL033: the last time step, or one of the final states, of a bidirectional layer."""

import pytest

SCRIPT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.{layer}
        self.head = nn.Linear(32, 2)
    def forward(self, x):
        {body}

model = Net()
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(64, 10, 6), torch.randint(2, (64,))
for step in range(10):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
GRU = "GRU(6, 16, batch_first=True, bidirectional=True)"
TWO = "LSTM(6, 16, 2, batch_first=True, bidirectional=True)"
FAULTY = {
    "the last step": (GRU, "out, h = self.rnn(x)\nreturn self.head(out[:, -1])  # <- MDL033"),
    "all features": (TWO, "out, _ = self.rnn(x)\nreturn self.head(out[:, -1, :])  # <- MDL033"),
    "a variable": (GRU, "out = self.rnn(x)[0]\nlast = out[:, -1, :]  # <- MDL033\nreturn self.head(last)"),
    "time first": (
        "GRU(6, 16, bidirectional=True)",
        "out, _ = self.rnn(x.transpose(0, 1))\nreturn self.head(out[-1])  # <- MDL033",
    ),
    "the last state": (GRU, "_, h = self.rnn(x)\nreturn self.head(h[-1])  # <- MDL033"),
    "the last state of an LSTM": (TWO, "out, (h, c) = self.rnn(x)\nreturn self.head(h[-1])  # <- MDL033"),
    "the first layer": (
        TWO,
        "_, (h, c) = self.rnn(x)\nreturn self.head(torch.cat((h[0], h[1]), 1))  # <- MDL033",
    ),
}
CORRECT = {
    "both states": (GRU, "_, h = self.rnn(x)\nreturn self.head(torch.cat([h[-2], h[-1]], 1))"),
    "both states of one layer": (GRU, "_, h = self.rnn(x)\nreturn self.head(torch.cat([h[0], h[1]], 1))"),
    "each half where it ends": (
        GRU,
        "out, _ = self.rnn(x)\nreturn self.head(torch.cat([out[:, -1, :16], out[:, 0, 16:]], 1))",
    ),
    "the first step as well": (GRU, "out, _ = self.rnn(x)\nreturn self.head(out[:, -1] + out[:, 0])"),
    "the mean": (GRU, "out, _ = self.rnn(x)\nreturn self.head(out.mean(1))"),
    "one direction": ("GRU(6, 32, batch_first=True)", "out, _ = self.rnn(x)\nreturn self.head(out[:, -1])"),
    "a query of attention": (
        GRU,
        "out, h = self.rnn(x)\nscore = out[..., :16] @ h[-1][:, :, None]\nreturn self.head((out * score).sum(1))",
    ),
    "all states": (GRU, "_, h = self.rnn(x)\nreturn self.head(h.transpose(0, 1).flatten(1))"),
}


def program(layer: str, body: str) -> str:
    return SCRIPT.replace("{layer}", layer).replace("{body}", body.replace("\n", "\n        "))


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_it(lint_reports, name):
    lint_reports(program(*FAULTY[name]))


@pytest.mark.parametrize("name", CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(program(*CORRECT[name]), "MDL033")
