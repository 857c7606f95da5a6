"""DAT059: a replay buffer that draws rows which are still empty."""

import pytest

BUFFER = """
import numpy as np
import torch
class Memory:
    def __init__(self, capacity, shape):
        self.capacity, self.head = capacity, 0
        self.states = np.zeros((capacity, *shape), dtype=np.float32)
        self.rewards = np.zeros(capacity, dtype=np.float32)

    def push(self, state, reward):
        self.states[self.head], self.rewards[self.head] = state, reward
        self.head = (self.head + 1) % self.capacity

    def sample(self, size):
        rows = np.random.randint(0, self.capacity, size=size)  # <- DAT059
        return torch.from_numpy(self.states[rows]), torch.from_numpy(self.rewards[rows])
"""
RANGE = "random.sample(range(self.capacity), size)"
FAULTY = {
    "randint": BUFFER,
    "choice": BUFFER.replace("randint(0, self.capacity, size=size)", "choice(self.capacity, size, replace=False)"),
    "a sample of a range": BUFFER.replace("np.random.randint(0, self.capacity, size=size)", RANGE),
    "a share is filled": BUFFER + """
def train(memory, steps):
    if steps > 0.1 * memory.capacity:
        update(memory.sample(32))
""",
    "allocated later": BUFFER.replace("self.states = np.zeros((capacity,", "self.states = np.zeros((self.capacity,"),
}  # fmt: skip
FAULTY["a sample of a range"] = FAULTY["a sample of a range"].replace("import torch", "import random, torch")
PLAIN = BUFFER.replace("  # <- DAT059", "")
CORRECT = {
    "counted": PLAIN.replace("randint(0, self.capacity", "randint(0, self.count").replace(
        "        self.head = (", "        self.count = min(self.count + 1, self.capacity)\n        self.head = ("
    ),
    "a flag": PLAIN.replace("(0, self.capacity", "(0, self.capacity if self.full else self.head"),
    "the program waits": PLAIN
    + """
def train(memory, steps):
    if steps >= memory.capacity:
        update(memory.sample(32))
""",
    "a method says it": PLAIN
    + """
    def is_full(self):
        return self.written >= self.capacity
""",
    "no buffer that starts again": PLAIN.replace("(self.head + 1) % self.capacity", "self.head + 1"),
    "other rows": PLAIN.replace("randint(0, self.capacity", "randint(0, self.head"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_it(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_other_buffers(lint_is_clean, script):
    lint_is_clean(script, "DAT059")
