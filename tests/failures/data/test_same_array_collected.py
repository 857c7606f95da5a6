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
    "numbers in dictionaries": """
logs = {d: {"loss": 0.0, "x": [], "y": []} for d in ("a", "b")}
for epoch in range(3):
    for d in logs:
        logs[d]["loss"] /= 4
        logs[d]["x"].append(epoch + 1)
        logs[d]["y"].append(logs[d]["loss"])
x, y = torch.tensor(logs["a"]["x"]), torch.tensor(logs["a"]["y"])
""",
    "numbers of calls": """
losses, totals = [], {"sum": 0.0}
for step in range(3):
    totals["sum"] += step
    losses.append(score(step))
    losses.append(step * 2)
x = torch.tensor(losses)
""",
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


# Arrays of objects ---------------------------------------------------------------------------------------------------

FAULTY |= {
    "a method for the observation, a deque of tuples": """
from collections import deque
class Point:
    def _observe(self):
        return self.place  # <- DAT021
    def reset(self):
        self.place = np.random.uniform(-1, 1, 2).astype(np.float32)
        return self._observe()
    def step(self, action):
        self.place += 0.1 * action
        np.clip(self.place, -1.0, 1.0, out=self.place)
        return self._observe(), float(-np.abs(self.place).sum()), False
env, memory = Point(), deque(maxlen=500)
state = env.reset()
for t in range(90):
    after, reward, done = env.step(1)
    memory.append((state, reward, after))
    state = env.reset() if done else after
""",
    "transitions of a dataclass": """
from dataclasses import dataclass
@dataclass
class Transition:
    seen: np.ndarray
    reward: float
class Cart:
    def __init__(self, rng):
        self.rng, self.x = rng, None
    def begin(self):
        self.x = self.rng.normal(size=4)
        return self.x
    def move(self, force):
        x = self.x
        x[1] += force
        x[0] += x[1]
        return self.x, -abs(float(x[0]))  # <- DAT021
class Agent:
    def __init__(self, world):
        self.world, self.seen = world, []
    def collect(self, steps):
        for _ in range(steps):
            place, reward = self.world.move(0.1)
            self.seen.append(Transition(place, reward))
        return torch.tensor(np.stack([each.seen for each in self.seen]))
Agent(Cart(np.random.default_rng(0))).collect(10)
""",
    "a tensor that shares the memory": """
class World:
    def __init__(self):
        self.cells = np.zeros((4, 4), dtype=np.float32)
    @property
    def view(self):
        return torch.from_numpy(self.cells).unsqueeze(0)  # <- DAT021
    def act(self, row, column):
        self.cells[row, column] += 1
        return self.view
world = World()
frames = []
for t in range(16):
    frames.append(world.act(t // 4, t % 4))
x = torch.cat(frames)
""",
    "a buffer that keeps what it gets": """
class Replay:
    def __init__(self):
        self.items = []
    def push(self, *transition):
        self.items.append(transition)
class Env:
    def __init__(self):
        self.s = np.zeros(3)
    def reset(self):
        self.s = np.zeros(3)
        return self.s
    def step(self, a):
        np.add(self.s, a, out=self.s)
        return self.s, 0.0, False  # <- DAT021
def rollout(env, replay):
    s = env.reset()
    for _ in range(20):
        new, r, d = env.step(0.1)
        replay.push(s, r, new)
        s = new
rollout(Env(), Replay())
""",
    "observed after the change": """
class Robot:
    def __init__(self):
        self.pose = torch.zeros(3)
    def drive(self, v):
        self.pose.add_(v)
    def sense(self):
        return self.pose  # <- DAT021
robot, seen = Robot(), []
for t in range(9):
    robot.drive(torch.randn(3))
    seen.append(robot.sense())
x = torch.stack(seen)
""",
    "a comprehension": """
class Walk:
    def __init__(self):
        self.place = np.zeros(2)
    def step(self):
        self.place += np.random.randn(2)
        return self.place  # <- DAT021
def sample(walk, n):
    places = [walk.step() for _ in range(n)]
    return torch.tensor(np.array(places))
sample(Walk(), 30)
""",
}
RETURNS = """
class Point:
    def __init__(self):
        self.place, self.count = np.zeros(2), 0
    def reset(self):
        self.place = np.random.uniform(-1, 1, 2)
        return RESET
    def step(self, action):
        CHANGE
        self.count += 1
        return RETURN, -1.0, False
env, memory = Point(), []
state = env.reset()
for t in range(90):
    after, reward, done = env.step(1)
    STORE
    state = env.reset() if done else after
x = torch.tensor(np.array([each[0] for each in memory]))
"""


def returned(
    value: str, change: str = "self.place += 0.1 * action", store: str = "memory.append((state, reward, after))"
) -> str:
    return RETURNS.replace("RESET", value).replace("RETURN", value).replace("CHANGE", change).replace("STORE", store)


CORRECT |= {
    "a copy is returned": returned("self.place.copy()"),
    "a new array is returned": returned("np.array(self.place)"),
    "a new tensor is returned": returned("torch.tensor(self.place)"),
    "another dtype is returned": returned("self.place.astype(np.float32)"),
    "rounded values are returned": returned("np.asarray(self.place, dtype=np.float32)"),
    "one number is returned": returned("self.place[0]"),
    "parts in a new array": returned("np.concatenate([self.place, self.place])"),
    "the state is replaced": returned("self.place", change="self.place = self.place + 0.1 * action"),
    "a clipped new state": returned("self.place", change="self.place = np.clip(self.place + action, -1, 1)"),
    "a counter is returned": returned("self.count"),
    "copies are stored": returned("self.place", store="memory.append((state.copy(), reward, after.copy()))"),
    "tensors are stored": returned("self.place", store="memory.append((torch.tensor(state), reward, np.array(after)))"),
    "only rewards are stored": returned("self.place", store="memory.append((reward, done))"),
    "a scalar state": """
class Walk:
    def __init__(self):
        self.x = np.random.uniform(-1, 1)
    def step(self):
        self.x += np.random.uniform(-1, 1)
        return self.x
walk, seen = Walk(), []
for t in range(30):
    seen.append(walk.step())
x = torch.tensor(seen)
""",
    "a buffer that writes into rows": """
class Replay:
    def __init__(self, n):
        self.states, self.count = np.zeros((n, 3)), 0
    def push(self, state, reward):
        self.states[self.count] = state
        self.count += 1
class Env:
    def __init__(self):
        self.s = np.zeros(3)
    def step(self, a):
        self.s += a
        return self.s, 0.0
env, replay = Env(), Replay(20)
for _ in range(20):
    s, r = env.step(0.1)
    replay.push(s, r)
""",
    "a buffer that copies": """
class Replay:
    def __init__(self):
        self.items = []
    def push(self, state, reward):
        self.items.append((np.array(state), reward))
class Env:
    def __init__(self):
        self.s = np.zeros(3)
    def step(self, a):
        self.s += a
        return self.s, 0.0
env, replay = Env(), Replay()
for _ in range(20):
    s, r = env.step(0.1)
    replay.push(s, r)
""",
    "converted before it is stored": """
class Env:
    def __init__(self):
        self.s = np.zeros(3)
    def step(self, a):
        self.s += a
        return self.s, 0.0
env, seen = Env(), []
for _ in range(20):
    s, r = env.step(0.1)
    s = torch.tensor(s, dtype=torch.float32)
    seen.append(s)
x = torch.stack(seen)
""",
    "another class has the method": """
class Env:
    def __init__(self):
        self.s = np.zeros(3)
    def step(self, a):
        self.s += a
        return self.s
class Copying:
    def __init__(self, env):
        self.env = env
    def step(self, a):
        return self.env.step(a).copy()
env, seen = Copying(Env()), []
for _ in range(20):
    s = env.step(0.1)
    seen.append(s)
x = torch.tensor(np.array(seen))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)


EPISODES = """
import random
import torch
from torch import nn

class Agent:
    def __init__(self):
        self.net = nn.Linear(4, 2)
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.replay = []
        self.states, self.rewards = [], []
    def begin(self):
        {begin}
    def record(self, state, reward):
        self.states.append(state)
        self.rewards.append(reward)
    def store(self):
        {store}
    def update(self):
        states, rewards = random.choice(self.replay)
        loss = (self.net(torch.stack(states)).mean(1) - torch.tensor(rewards)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
agent = Agent()
for episode in range(50):
    agent.begin()
    for t in range(20):
        agent.record(torch.randn(4), random.random())
    agent.store()
    agent.update()
"""
CLEAR = "self.states.clear()\n        self.rewards.clear()"
LOCAL = """
import torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
episodes, steps = [], []
for episode in range(20):
    {first}
    for t in range(5):
        steps.append(torch.randn(4))
    {store}
for steps in episodes:
    loss = model(torch.stack(steps)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
EMPTIED = {
    "two lists": EPISODES.format(begin=CLEAR, store="self.replay.append((self.states, self.rewards))  # <- DAT021"),
    "lists in a list": EPISODES.format(
        begin="pass", store=f"self.replay.append([self.states, self.rewards])  # <- DAT021\n        {CLEAR}"
    ).replace("append([self.states, self.rewards])", "append((self.states, self.rewards))"),
    "variables": LOCAL.format(first="steps.clear()", store="episodes.append(steps)  # <- DAT021"),
    "emptied at the end": LOCAL.format(first="pass", store="episodes.append(steps)  # <- DAT021\n    steps.clear()"),
}
NOT_EMPTIED = {
    "copies": EPISODES.format(begin=CLEAR, store="self.replay.append((list(self.states), self.rewards[:]))"),
    "new lists": EPISODES.format(
        begin="self.states, self.rewards = [], []", store="self.replay.append((self.states, self.rewards))"
    ),
    "tensors": LOCAL.format(first="steps.clear()", store="episodes.append(torch.stack(steps))"),
    "extended": LOCAL.format(first="steps.clear()", store="episodes.append(steps[:])"),
    "a new list after it": LOCAL.format(first="pass", store="episodes.append(steps)\n    steps = []"),
    "both are emptied": LOCAL.format(first="steps.clear()\n    episodes.clear()", store="episodes.append(steps)"),
}


@pytest.mark.parametrize("script", EMPTIED.values(), ids=EMPTIED)
def test_lint_reports_stored_lists_that_are_emptied(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", NOT_EMPTIED.values(), ids=NOT_EMPTIED)
def test_lint_accepts_lists_that_are_copied_or_replaced(lint_codes, script):
    assert "DAT021" not in lint_codes(script)


RUN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state, states, targets = torch.zeros(4), [], []
for t in range(64):
    KEEP
    targets.append(state.sum() + torch.randn(()))
x, y = torch.stack(states), torch.stack(targets)
for epoch in range(10):
    for rows in torch.randperm(64).split(16):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(INPUT).squeeze(1), y[rows])
        loss.backward()
        optimizer.step()
"""
KEPT = {
    "in a helper": "(lambda s: states.append(torch.from_numpy(s.numpy())))(state); state += torch.randn(4)",
    "as one view": "state[t % 4] = torch.randn(()); states.extend([state.view(-1)])",
}


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_run_reports_batches_of_equal_samples(run, keep):
    found = run(RUN.replace("KEEP", keep).replace("INPUT", "x[rows]")).findings
    assert [(each.code, each.severity.name) for each in found if each.code != "LRN001"] == [("DAT021", "WARNING")]
    assert "All 16 samples of a batch are equal" in found[0].message


WITH_CODES = """
class Net(nn.Sequential):
    def forward(self, x, codes=0):
        return super().forward(x + codes)

codes = torch.randn(64, 4)
model.__class__ = Net
"""
OTHERS = {
    "copies": ("state += torch.randn(4); states.append(state.clone())", "x[rows]"),
    "a distribution without inputs": ("states.append(torch.ones(4))", "x[rows]"),
    "noise that is added": ("states.append(torch.arange(4.0))", "x[rows] + torch.rand(16, 4)"),
    "coordinates, and a code for each sample": ("states.append(torch.arange(4.0))", "x[rows], codes[rows]"),
}


@pytest.mark.parametrize(("keep", "inputs"), OTHERS.values(), ids=OTHERS)
def test_run_accepts_other_batches(run, keep, inputs):
    script = RUN.replace("KEEP", keep).replace("INPUT", inputs).replace("for epoch", f"{WITH_CODES}for epoch")
    found = run(script).findings
    assert not [each for each in found if each.code == "DAT021"]
