"""DAT021: one array that is stored again and again while it changes."""

import pytest

HEAD = """
import numpy as np
import torch
from torch import nn

"""

FAULTY = {
    "in a tuple, with NumPy": """
state, memory = np.zeros(4), []
for t in range(9):
    memory.append((state, t))  # <- DAT021
    state += np.random.randn(4)
x = torch.tensor(np.array([s for s, _ in memory]))
""",
    "a method in place": """
def rollout():
    window, windows = torch.zeros(8), []
    while len(windows) < 9:
        window.add_(torch.randn(8))
        windows.append(window)  # <- DAT021
    return torch.stack(windows)
""",
    "an environment that returns its state": """
class Env:
    def __init__(self):
        self.state = np.zeros(4, dtype=np.float32)

    def step(self, action):
        self.state += action
        return self.state, 1.0  # <- DAT021

env, buffer = Env(), []
for t in range(9):
    state, reward = env.step(0.5)
    buffer.append((state, reward))
x = torch.tensor(np.array([s for s, _ in buffer]))
""",
}

CORRECT = {
    "a copy": """
state, memory = np.zeros(4), []
for t in range(9):
    memory.append(state.copy())
    state += np.random.randn(4)
x = torch.tensor(np.array(memory))
""",
    "a new array in each iteration": """
state, memory = torch.zeros(4), []
for t in range(9):
    state = state + torch.randn(4)
    memory.append(state)
x = torch.stack(memory)
""",
    "filled within the iteration": """
rows, row = [], torch.zeros(4)
for t in range(9):
    row = torch.zeros(4)
    row[t % 4] = 1
    rows.append(row)
x = torch.stack(rows)
""",
    "numbers": """
total, totals = 0.0, []
for t in range(9):
    total += 0.5
    totals.append(total)
x = torch.tensor(totals)
""",
    "not changed in the loop": """
mask, masks = torch.zeros(4), []
mask[0] = 1
for t in range(9):
    masks.append(mask)
x = torch.stack(masks)
""",
    "an environment that returns a copy": """
class Env:
    def __init__(self):
        self.state = np.zeros(4, dtype=np.float32)

    def step(self, action):
        self.state += action
        return self.state.copy(), 1.0

env, buffer = Env(), []
for t in range(9):
    state, reward = env.step(0.5)
    buffer.append((state, reward))
x = torch.tensor(np.array([s for s, _ in buffer]))
""",
    "an environment with a new state": """
class Env:
    def __init__(self):
        self.state = np.zeros(4, dtype=np.float32)

    def step(self, action):
        self.state = self.state + action
        self.state[0] = 1
        return self.state, 1.0

env, buffer = Env(), []
for t in range(9):
    state, reward = env.step(0.5)
    buffer.append((state, reward))
x = torch.tensor(np.array([s for s, _ in buffer]))
""",
}

FAULTY |= {
    "an output buffer of an object": """
class Committee:
    def __init__(self, nets):
        self.nets, self.buffer = nets, None

    def votes(self, x):
        self.buffer = torch.empty(len(x), 2)
        votes = []
        for net in self.nets:
            torch.softmax(net(x), dim=1, out=self.buffer)
            votes.append(self.buffer)  # <- DAT021
        return torch.stack(votes)
""",
    "an output buffer that is passed": """
def votes(nets, x, buffer):
    votes = []
    for net in nets:
        scores = torch.softmax(net(x), dim=1, out=buffer)
        votes.append(scores)  # <- DAT021
    return torch.stack(votes)
""",
    "the result of the call": """
buffer, found = torch.empty(8), []
for x in inputs:
    found.append(torch.exp(x, out=buffer))  # <- DAT021
mean = sum(found) / len(found)
""",
    "a dictionary": """
found, buffer = {}, np.zeros(8)
found = {}
for name in names:
    np.exp(inputs[name], out=buffer)
    found[name] = buffer  # <- DAT021
x = torch.tensor(np.stack(list(found.values())))
""",
    "a list": "votes = torch.stack([torch.exp(x, out=buffer) for x in inputs])  # <- DAT021\n",
    "an attribute that changes in place": """
class Walk:
    def run(self):
        self.place = torch.zeros(2)
        for t in range(9):
            self.place += torch.randn(2)
            self.places.append(self.place)  # <- DAT021
        return torch.stack(self.places)
""",
}
CORRECT |= {
    "a copy of the output buffer": """
def votes(nets, x, buffer):
    votes = []
    for net in nets:
        torch.softmax(net(x), dim=1, out=buffer)
        votes.append(buffer.clone())
    return torch.stack(votes + [torch.exp(x, out=buffer).clone() for x in inputs])
""",
    "rows of an output": """
votes, means = torch.empty(5, 8), []
for i, x in enumerate(inputs):
    torch.exp(x, out=votes[i])
    means.append(votes[i])
print(torch.stack(means))
""",
    "a number from the buffer": """
buffer, sums = torch.empty(8), []
for x in inputs:
    sums.append(torch.exp(x, out=buffer).sum())
total = torch.stack(sums)
""",
    "a new buffer for each": """
sums = []
for x in inputs:
    buffer = torch.empty(8)
    torch.exp(x, out=buffer)
    sums.append(buffer)
total = torch.stack(sums)
""",
    "an attribute of other objects": """
class Walk:
    def run(self):
        for t in range(9):
            self.place = self.place + torch.randn(2)
            self.places.append(self.place)
        return torch.stack(self.places)
""",
    "an array in another one": """
table, row = torch.zeros(9, 8), torch.zeros(8)
for t in range(9):
    row += torch.randn(8)
    table[t] = row
print(torch.stack([table, table]))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
