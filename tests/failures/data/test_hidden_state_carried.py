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


CHUNKS = """
import random
class Forecaster(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.memory = nn.LSTM(1, n, batch_first=True)
        self.out = nn.Linear(n, 1)
    def forward(self, x, before=None):
        h, after = self.memory(x, before)
        return self.out(h), after
def chunk_at(i):
    return series[:, i * 24 : i * 24 + 24], series[:, i * 24 + 1 : i * 24 + 25]
def cut(carry):
    return None if carry is None else tuple(each.detach() for each in carry)
model = Forecaster(32)
optimizer = torch.optim.Adam(model.parameters())
"""
STEP = "        F.mse_loss(out, y).backward()\n        optimizer.step()\n        optimizer.zero_grad()\n"
FAULTY_CHUNKS = {
    "a sample of all positions": """
for epoch in range(9):
    state, order = None, random.sample(range(40), 40)
    for i in order:
        x, y = chunk_at(i)
        if state is not None:
            state = tuple(s.detach() for s in state)
        out, state = model(x, state)  # <- DAT032
""",
    "positions shuffled in place, and a state with another name": """
starts = list(range(0, 960, 24))
for epoch in range(9):
    carry = None
    random.shuffle(starts)
    for s in starts:
        x, y = series[:, s : s + 24], series[:, s + 1 : s + 25]
        out, carry = model(x, carry)  # <- DAT032
        carry = cut(carry)
""",
    "a list of chunks": """
chunks = [chunk_at(i) for i in range(40)]
for epoch in range(9):
    hidden = None
    np.random.default_rng(epoch).shuffle(chunks)
    for number, (x, y) in enumerate(chunks):
        out, hidden = model(x, hidden)  # <- DAT032
        hidden = cut(hidden)
""",
    "numbers of a permutation": """
for epoch in range(9):
    order = torch.randperm(40).tolist()
    hidden = None
    for step in range(len(order)):
        x, y = chunk_at(order[step])
        out, hidden = model(x, hidden)  # <- DAT032
        hidden = cut(hidden)
""",
    "starts in a comprehension": """
for epoch in range(9):
    starts = [24 * int(k) for k in np.random.permutation(40)]
    h = None
    for s in starts[:30]:
        x, y = series[:, s : s + 24], series[:, s + 1 : s + 25]
        out, h = model(x, h)  # <- DAT032
        h = cut(h)
""",
    "positions that are drawn": """
for epoch in range(9):
    state = None
    for _ in range(40):
        at = random.randrange(936)
        x, y = series[:, at : at + 24], series[:, at + 1 : at + 25]
        out, state = model(x, state)  # <- DAT032
        state = cut(state)
""",
    "a class that permutes its chunks": """
class Chunks:
    def __init__(self, series, length, shuffle=False):
        self.series, self.length, self.shuffle = series, length, shuffle
    def __iter__(self):
        starts = np.arange(0, 960, self.length)
        if self.shuffle:
            np.random.shuffle(starts)
        for s in starts:
            yield self.series[:, s : s + 24], self.series[:, s + 1 : s + 25]
train_chunks = Chunks(series, 24, shuffle=True)
for epoch in range(9):
    state = None
    for x, y in train_chunks:
        out, state = model(x, state)  # <- DAT032
        state = cut(state)
""",
    "a step in a function": """
def learn(model, x, y, state):
    out, state = model(x, state)
    loss = F.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item(), cut(state)
for epoch in range(9):
    state = None
    for i in random.sample(range(40), k=40):
        x, y = chunk_at(i)
        loss, state = learn(model, x, y, state)  # <- DAT032
""",
}
CORRECT_CHUNKS = {
    "in order": FAULTY_CHUNKS["a sample of all positions"].replace("random.sample(range(40), 40)", "list(range(40))"),
    "sorted again": FAULTY_CHUNKS["a sample of all positions"].replace(
        "random.sample(range(40), 40)", "sorted(random.sample(range(40), 30))"
    ),
    "a state of its own for each sequence": """
for epoch in range(9):
    for i in random.sample(range(40), 40):
        state = None
        x, y = chunk_at(i)
        out, state = model(x, state)
""",
    "sequences in random order, each in chunks": """
for song in random.sample(songs, len(songs)):
    state = None
    for s in range(0, 960, 24):
        x, y = song[:, s : s + 24], song[:, s + 1 : s + 25]
        out, state = model(x, state)
        state = cut(state)
""",
    "rows in random order, each in chunks": """
order = torch.randperm(len(series))
for i in range(0, len(series), 16):
    state = None
    for s in range(0, 960, 24):
        x, y = series[order[i : i + 16], s : s + 24], series[order[i : i + 16], s + 1 : s + 25]
        out, state = model(x, state)
        state = cut(state)
""",
    "a random start of the pass": """
for epoch in range(9):
    state, offset = None, random.randrange(24)
    for s in range(offset, 930, 24):
        x, y = series[:, s : s + 24], series[:, s + 1 : s + 25]
        out, state = model(x, state)
        state = cut(state)
""",
    "streams with a state each": """
states = {}
for k, i in random.sample([(k, i) for k in range(4) for i in range(10)], 40):
    x, y = chunk_at(i)
    state = states.get(k)
    out, state = model(x, state)
    states[k] = cut(state)
""",
    "files in random order that are joined before": """
random.shuffle(files)
text = torch.cat([read(each) for each in files])
state = None
for s in range(0, len(text), 24):
    x, y = text[s : s + 24], text[s + 1 : s + 25]
    out, state = model(x, state)
    state = cut(state)
""",
    "memory of a replay buffer, next to a state of the episode": """
hidden = None
for t in range(400):
    action, hidden = model(observation, hidden)
    observation, y = env.step(action)
    hidden = cut(hidden)
    at = random.randrange(len(memory))
    batch = memory[at]
    out = critic(batch)
""",
    "a random shift of chunks in order": """
state = None
for x, y in chunks_in_order(series):
    shift = random.randint(0, 4)
    x = x[:, shift:]
    out, state = model(x, state)
    state = cut(state)
""",
    "a function that starts with zeros": FAULTY_CHUNKS["a step in a function"].replace(
        "    out, state = model(x, state)\n", "    state = None\n    out, state = model(x, state)\n", 1
    ),
    "shuffled for another loop": """
order = list(range(40))
state = None
for i in order:
    x, y = chunk_at(i)
    out, state = model(x, state)
    state = cut(state)
random.shuffle(order)
""",
}


@pytest.mark.parametrize("script", FAULTY_CHUNKS.values(), ids=FAULTY_CHUNKS.keys())
def test_lint_reports_chunks_in_random_order(lint_reports, script):
    step = STEP if "loss.backward" not in script else ""
    lint_reports(HEAD + CHUNKS + script + step)


@pytest.mark.parametrize("script", CORRECT_CHUNKS.values(), ids=CORRECT_CHUNKS.keys())
def test_lint_accepts_states_of_their_own(lint_is_clean, script):
    lines = script.replace("  # <- DAT032", "").rstrip("\n").splitlines()
    end = next(number for number in range(len(lines), 0, -1) if lines[number - 1].startswith(" "))
    indent = " " * (len(lines[end - 1]) - len(lines[end - 1].lstrip()))
    step = [indent + each.strip() for each in STEP.splitlines()] if "loss.backward" not in script else []
    lint_is_clean(HEAD + CHUNKS + "\n".join([*lines[:end], *step, *lines[end:]]) + "\n", "DAT032")


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
