"""DAT055: the position of a ring buffer is advanced between two writes of the same entry."""

import pytest

FAULTY = {
    "a queue of slices": """
class Queue(nn.Module):
    def __init__(self, dim, size):
        super().__init__()
        self.size = size
        self.register_buffer("queue", torch.randn(dim, size))
        self.register_buffer("ids", torch.zeros(size, dtype=torch.long))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def dequeue_and_enqueue(self, keys, ids):
        n = keys.shape[0]
        ptr = int(self.queue_ptr)
        self.queue[:, ptr:ptr + n] = keys.T
        ptr = (ptr + n) % self.size  # <- DAT055
        self.ids[ptr:ptr + n] = ids
        self.queue_ptr[0] = ptr
""",
    "a replay memory": """
class Replay:
    def __init__(self, size):
        self.states, self.actions = np.zeros((size, 4)), np.zeros(size)
        self.rewards, self.next_states = np.zeros(size), np.zeros((size, 4))
        self.pos, self.size = 0, size

    def push(self, state, action, reward, next_state):
        self.states[self.pos] = state
        self.actions[self.pos] = action
        self.pos = (self.pos + 1) % self.size  # <- DAT055
        self.rewards[self.pos] = reward
        self.next_states[self.pos] = next_state
""",
    "an if that wraps": """
class Replay:
    def add(self, obs, done):
        self.obs[self.head] = torch.as_tensor(obs)
        self.head += 1  # <- DAT055
        if self.head == self.capacity:
            self.head = 0
        self.done[self.head] = float(done)
""",
    "modulo in a statement of its own": """
class Bank:
    def update(self, z, y):
        with torch.no_grad():
            self.z[self.i].copy_(z)
            self.i += 1  # <- DAT055
            self.i %= len(self.z)
            self.y[self.i] = y
""",
    "modulo in the index": """
class Bank:
    def update(self, z, y):
        self.z[self.seen % self.size] = z
        self.seen += 1  # <- DAT055
        self.y[self.seen % self.size] = y
""",
    "variables in a loop": """
feats, tags = torch.zeros(100, 4), torch.zeros(100)
where = 0
for x, y in stream:
    feats[where] = model(x).detach()
    where = (where + 1) % 100  # <- DAT055
    tags[where] = y
""",
    "slices of batches": """
def embed(loader, model, n):
    z, y = torch.zeros(n, 8), torch.zeros(n)
    start = 0
    for inputs, labels in loader:
        size = len(inputs)
        z[start:start + size] = model(inputs)
        start += size  # <- DAT055
        y[start:start + size] = labels
    return z, y
""",
    "a method that advances": """
class Memory:
    def _advance(self):
        self.cursor = (self.cursor + 1) % self.size

    def add(self, x, y):
        self.xs[self.cursor] = x
        self._advance()  # <- DAT055
        self.ys[self.cursor] = y
""",
    "a dictionary of arrays": """
class Memory:
    def add(self, x, y):
        self.data["x"][self.cursor] = x
        self.cursor = (self.cursor + 1) % self.size  # <- DAT055
        self.data["y"][self.cursor] = y
""",
    "a loop over the arrays": """
class Memory:
    def add(self, **values):
        for name, value in values.items():
            self.data[name][self.cursor] = value
            self.cursor = (self.cursor + 1) % self.size  # <- DAT055
""",
    "a conditional expression that wraps": """
class Memory:
    def store(self, item):
        self.buffer["x"][self.idx] = item.x
        self.idx = self.idx + 1 if self.idx + 1 < self.n else 0  # <- DAT055
        self.buffer["y"][self.idx] = item.y
""",
    "a closure": """
def make_bank(size):
    keys, labels, slot = torch.zeros(size, 8), torch.zeros(size), 0
    def put(key, label):
        nonlocal slot
        keys[slot] = key
        slot = (slot + 1) % size  # <- DAT055
        labels[slot] = label
    return put
""",
    "a new position in a variable": """
class Memory:
    def add(self, x, y):
        end = (self.ptr + 1) % self.size
        self.xs[self.ptr] = x
        self.ptr = end  # <- DAT055
        self.ys[self.ptr] = y
""",
    "index_copy_": """
class Memory:
    def add(self, z, y):
        rows = torch.arange(self.ptr, self.ptr + len(z)) % self.size
        self.z.index_copy_(0, rows, z)
        self.ptr = (self.ptr + len(z)) % self.size  # <- DAT055
        rows = torch.arange(self.ptr, self.ptr + len(z)) % self.size
        self.y.index_copy_(0, rows, y)
""",
}

CORRECT = {
    "all before": """
class Memory:
    def add(self, x, y):
        self.xs[self.ptr] = x
        self.ys[self.ptr] = y
        self.ptr = (self.ptr + 1) % self.size
""",
    "all after": """
class Memory:
    def add(self, x, y):
        self.ptr = (self.ptr + 1) % self.size
        self.xs[self.ptr] = x
        self.ys[self.ptr] = y
""",
    "the index was computed before": """
class Memory:
    def add(self, x, y):
        rows = (self.ptr + torch.arange(len(x))) % self.size
        self.xs[rows] = x
        self.ptr = (self.ptr + len(x)) % self.size
        self.ys[rows] = y
""",
    "the old position in a variable": """
class Memory:
    def add(self, x, y):
        old = self.ptr
        self.xs[self.ptr] = x
        self.ptr = (self.ptr + 1) % self.size
        self.ys[old] = y
""",
    "one before the new position": """
class Memory:
    def add(self, x, y):
        self.xs[self.ptr] = x
        self.ptr = (self.ptr + 1) % self.size
        self.ys[self.ptr - 1] = y
""",
    "two positions": """
class Memory:
    def add(self, x, y):
        self.xs[self.x_ptr] = x
        self.x_ptr = (self.x_ptr + 1) % self.size
        self.ys[self.y_ptr] = y
        self.y_ptr = (self.y_ptr + 1) % self.size
""",
    "head and tail": """
class Queue:
    def swap(self, x):
        self.items[self.tail] = x
        self.tail = (self.tail + 1) % self.size
        out = self.items[self.head]
        self.read[self.head] = x
        self.head = (self.head + 1) % self.size
        return out
""",
    "a read": """
class Memory:
    def add(self, x):
        self.xs[self.ptr] = x
        self.ptr = (self.ptr + 1) % self.size
        return self.ys[self.ptr]
""",
    "the next entry is invalid": """
class Memory:
    def add(self, x):
        self.xs[self.ptr] = x
        self.valid[self.ptr] = True
        self.ptr = (self.ptr + 1) % self.size
        self.valid[self.ptr] = False
        self.weights[self.ptr] = 0.0
""",
    "observations have an entry more": """
class Frames:
    def begin(self, obs):
        self.obs[self.ptr] = obs

    def add(self, action, reward, obs):
        self.actions[self.ptr] = action
        self.rewards[self.ptr] = reward
        self.ptr = (self.ptr + 1) % self.size
        self.obs[self.ptr] = obs
""",
    "observations of a loop": """
obs, ptr = env.reset(), 0
frames[0] = obs
for step in range(100):
    actions[ptr] = policy(obs)
    obs, reward, done = env.step(actions[ptr])
    ptr = (ptr + 1) % 50
    frames[ptr] = obs
""",
    "next entry of the same array": """
class Ring:
    def add(self, x, y):
        self.rows[self.ptr] = x
        self.ptr = (self.ptr + 1) % self.size
        self.rows[self.ptr] = y
        self.ptr = (self.ptr + 1) % self.size
""",
    "pieces that follow each other": """
def pack(a, b):
    out, where, at = torch.zeros(100), torch.zeros(100), 0
    out[at:at + len(a)] = a
    at += len(a)
    where[at:at + len(b)] = b
    return out, where
""",
    "time steps of a simulation": """
for k in range(100):
    force[t] = spring(place)
    t += 1
    path[t] = place
""",
    "two buffers": """
class Double:
    def add(self, x, y):
        self.front[self.now] = x
        self.now = (self.now + 1) % 2
        self.back[self.now] = y
""",
    "each environment has its position": """
class Memory:
    def add(self, rows):
        for env, row in enumerate(rows):
            self.data[env][self.ptr[env]] = row
            self.ptr[env] = (self.ptr[env] + 1) % self.size
""",
    "after a loop over the arrays": """
class Memory:
    def add(self, **values):
        for name, value in values.items():
            self.data[name][self.cursor] = value
        self.cursor = (self.cursor + 1) % self.size
""",
    "row by row": """
class Memory:
    def add(self, rows, tags):
        for row, tag in zip(rows, tags):
            self.rows[self.cursor] = row
            self.tags[self.cursor] = tag
            self.cursor = (self.cursor + 1) % self.size
""",
    "other values of the new position": """
class Memory:
    def add(self, x, n):
        self.xs[self.ptr] = x
        self.ptr = (self.ptr + 1) % self.size
        self.start[self.ptr] = self.ptr * n
""",
}
HEAD = "import numpy as np\nimport torch\nfrom torch import nn\n"


@pytest.mark.parametrize("text", FAULTY.values(), ids=FAULTY)
def test_lint_reports_positions_that_are_advanced_between_writes(lint_reports, text: str):
    lint_reports(HEAD + text)


@pytest.mark.parametrize("text", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_positions_that_are_advanced_once_per_entry(lint_is_clean, text: str):
    lint_is_clean(HEAD + text, "DAT055")
