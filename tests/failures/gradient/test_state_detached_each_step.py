"""GRD022: hidden states that are detached at every time step."""

import pytest

HEAD = """
import torch
from torch import nn

def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.lstm, self.out = None, None, nn.Linear(16, 3)
        self.cell = nn.GRUCell(4, 16)
        self.steps = nn.LSTMCell(4, 16)
        self.rnn = nn.GRU(4, 16)
"""
HEAD = HEAD.replace("self.cell, self.lstm, self.out = None, None, ", "self.out = ")

FAULTY = {
    "a function, in the call": """
    def forward(self, xs, h):
        outs = []
        for t in range(xs.size(1)):
            h = self.cell(xs[:, t], repackage_hidden(h))  # <- GRD022
            outs.append(self.out(h))
        return torch.stack(outs, 1), h
""",
    "both states of an LSTM": """
    def forward(self, xs, h, c):
        for x in xs.unbind(1):
            h, c = self.steps(x, (h.detach(), c.detach()))  # <- GRD022
        return self.out(h)
""",
    "a statement of its own": """
    def forward(self, xs, h):
        for x in xs.split(1):
            y, h = self.rnn(x, h)
            h = h.detach()  # <- GRD022
        return self.out(y)
""",
}
CORRECT = {
    "once, before the loop": """
    def forward(self, xs, h):
        h = h.detach()
        for t in range(xs.size(1)):
            h = self.cell(xs[:, t], h)
        return self.out(h)
""",
    "every k steps": """
    def forward(self, xs, h):
        for t in range(xs.size(1)):
            if t % 20 == 0:
                h = h.detach()
            h = self.cell(xs[:, t], h)
        return self.out(h)
""",
    "a copy for the log": """
    def forward(self, xs, h):
        for t in range(xs.size(1)):
            h = self.cell(xs[:, t], h)
            self.log.append(h.detach())
            seen = h.detach()
        return self.out(h)
""",
    "a loop over chunks, outside of the model": """
    def forward(self, xs, h):
        return self.rnn(xs, h)
def train(model, chunks, h):
    for x, y in chunks:
        h = h.detach()
        out, h = model(x, h)
        loss(out, y).backward()
""",
    "sampled inputs": """
    def forward(self, x, h):
        for t in range(20):
            h = self.cell(x, h)
            x = self.out(h).argmax(1).detach()
        return h
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_programs(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script)
