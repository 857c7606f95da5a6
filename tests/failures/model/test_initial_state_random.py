"""MDL034: a recurrent layer that starts from random numbers."""

import pytest

SCRIPT = """
import torch
from torch import nn

class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(6, 16, batch_first=True)
        self.start = nn.Parameter(torch.randn(1, 1, 16))
        self.head = nn.Linear(16, 2)
    def init_hidden(self, n):
        return torch.randn(1, n, 16), torch.randn(1, n, 16){helper}
    def forward(self, x):
        {body}

model = {name}()
print(model(torch.randn(64, 10, 6)))
"""
FAULTY = {
    "both states": """
h = torch.randn(1, len(x), 16)  # <- MDL034
c = torch.randn(1, len(x), 16)
out, _ = self.rnn(x, (h, c))""",
    "on the device": """
h0 = torch.rand(1, x.size(0), 16).to(x.device)  # <- MDL034
out, _ = self.rnn(x, (h0, torch.zeros_like(h0)))""",
    "a helper": "out, _ = self.rnn(x, self.init_hidden(len(x)))",
}
CORRECT = {
    "zeros": "h = torch.zeros(1, len(x), 16)\nout, _ = self.rnn(x, (h, h))",
    "a parameter": "h = self.start.expand(1, len(x), 16).contiguous()\nout, _ = self.rnn(x, (h, h))",
    "no state": "out, _ = self.rnn(x)",
    "noise in the input too": "h = torch.randn(1, 4, 16)\nout, _ = self.rnn(torch.randn(4, 10, 6), (h, h))",
    "an embedded state": "h = self.start + 0.1 * torch.randn(1, len(x), 16)\nout, _ = self.rnn(x, (h, h))",
}


def program(body: str, name: str = "Net", helper: str = "") -> str:
    lines = f"{body.strip()}\nreturn self.head(out[:, -1])".replace("\n", "\n        ")
    return SCRIPT.replace("{name}", name).replace("{body}", lines).replace("{helper}", helper)


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_it(lint_reports, name):
    lint_reports(program(FAULTY[name], helper="  # <- MDL034" if name == "a helper" else ""))


@pytest.mark.parametrize("name", CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, name):
    lint_is_clean(program(CORRECT[name]), "MDL034")


def test_lint_ignores_what_makes_samples(lint_is_clean):
    lint_is_clean(program("h = torch.randn(1, len(x), 16)\nout, _ = self.rnn(x, (h, h))", "MusicGenerator"), "MDL034")
