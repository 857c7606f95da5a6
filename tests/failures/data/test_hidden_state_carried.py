"""DAT032: hidden states of shuffled batches, and correct programs that look like it."""

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

"""

LOADER = "loader = DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True)\nrnn = nn.LSTM(4, 8)\n"
END = "    loss = criterion(out, y)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"

FAULTY = {
    "a pair of states": LOADER
    + """
h, c = torch.zeros(1, 20, 8), torch.zeros(1, 20, 8)
for x, y in loader:
    out, (h, c) = rnn(x, (h, c))  # <- DAT032
    h, c = h.detach(), c.detach()
"""
    + END,
    "a model in a function": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(4, 8)
def train(model, train_loader, optimizer):
    state = model.init_state(32)
    for i, (x, y) in enumerate(train_loader):
        optimizer.zero_grad()
        pred, new_state = model(x, state)  # <- DAT032
        state = new_state.detach()
        F.mse_loss(pred, y).backward()
        optimizer.step()
batches = DataLoader(data, 32, shuffle=True)
train(Net(), batches, optimizer)
""",
    "a permutation": """
model = nn.GRU(4, 8)
for epoch in range(5):
    hidden = None
    for rows in torch.randperm(len(X)).split(32):
        out, hidden = model(X[rows], hidden)  # <- DAT032
        hidden = tuple(each.detach() for each in hidden)
        y = Y[rows]
"""
    + END.replace("    ", "        "),
    "slices of a permutation": """
model, hidden = nn.RNN(4, 8), None
order = np.random.permutation(len(X))
for i in range(0, len(X), 32):
    rows = order[i : i + 32]
    if hidden is None:
        hidden = torch.zeros(1, 32, 8)
    out, hidden = model(X[rows], hidden)  # <- DAT032
    y = Y[rows]
"""
    + END,
    "a module that keeps its state": LOADER
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.hidden = nn.LSTM(4, 8), None
    def forward(self, x):
        if self.hidden is not None:
            self.hidden = tuple(h.detach() for h in self.hidden)
        out, self.hidden = self.lstm(x, self.hidden)  # <- DAT032
        return out
net = Net()
for x, y in loader:
    out = net(x)
"""
    + END,
    "a module that stores a detached copy": LOADER
    + """
class Net(nn.Module):
    def __init__(this):
        super().__init__()
        this.lstm, this.hidden = nn.LSTM(4, 8), None
    def forward(this, x):
        if this.hidden is None or this.hidden[0].shape[1] != len(x):
            this.hidden = (torch.zeros(1, len(x), 8), torch.zeros(1, len(x), 8))
        out, (h, c) = this.lstm(x, this.hidden)  # <- DAT032
        this.hidden = (h.detach(), c.detach())
        return out
net = Net()
for x, y in loader:
    out = net(x)
"""
    + END,
}
CORRECT = {
    "a module that stores its last state only to show it": LOADER
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.hidden = nn.LSTM(4, 8), None
    def forward(self, x):
        self.hidden = torch.zeros(1, len(x), 8), torch.zeros(1, len(x), 8)
        out, state = self.lstm(x, self.hidden)
        self.hidden = state
        return out
net = Net()
for x, y in loader:
    out = net(x)
"""
    + END,
    "contiguous text": LOADER.replace("True", "False")
    + "hidden = None\nfor x, y in loader:\n    out, hidden = rnn(x, hidden)\n    hidden = repackage(hidden)\n"
    + END,
    "a new state in each batch": LOADER
    + "for x, y in loader:\n    hidden = init_hidden(len(x))\n    out, hidden = rnn(x, hidden)\n"
    + END,
    "the time steps of one batch": LOADER
    + """
cell = nn.GRUCell(4, 8)
for x, y in loader:
    h = torch.zeros(len(x), 8)
    for t in range(x.shape[1]):
        out, h = step(x[:, t], h)
"""
    + END,
    "no state": LOADER + "for x, y in loader:\n    out, hidden = rnn(x)\n" + END,
    "a mask": LOADER
    + "hidden = start\nfor x, y, go in loader:\n    out, hidden = rnn(x, hidden)\n    hidden = hidden.detach() * go\n"
    + END,
    "zeros in place": LOADER
    + "hidden = start\nfor x, y in loader:\n    hidden.zero_()\n    out, hidden = rnn(x, hidden)\n"
    + END,
    "slices of one text": """
model, hidden = nn.RNN(4, 8), None
for i in range(0, len(X), 32):
    out, hidden = model(X[i : i + 32], hidden)
    hidden, y = hidden.detach(), Y[i : i + 32]
"""
    + END,
    "a module whose state is reset": LOADER
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.hidden = nn.LSTM(4, 8), None
    def reset(self):
        self.hidden = None
    def forward(self, x):
        out, self.hidden = self.lstm(x, self.hidden)
        return out
net = Net()
for x, y in loader:
    net.reset()
    out = net(x)
"""
    + END,
    "a module whose state is set from outside": LOADER
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 8)
    def forward(self, x):
        out, self.hidden = self.lstm(x, self.hidden)
        return out
net = Net()
for x, y in loader:
    net.hidden = zeros(len(x))
    out = net(x)
"""
    + END,
    "evaluation": LOADER + "hidden = None\nfor x, y in loader:\n    out, hidden = rnn(x, hidden)\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
