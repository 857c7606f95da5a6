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


RUN_HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
x, y = torch.randn(8, 36, 4), torch.randn(8, 36, 1)
cell, lstm, gru, head = nn.GRUCell(4, 16), nn.LSTMCell(4, 16), nn.GRU(4, 16, batch_first=True), nn.Linear(16, 1)
parts = nn.ModuleList([cell, lstm, gru, head])
optimizer = torch.optim.SGD(parts.parameters(), lr=0.01)
def update(outputs, targets):
    optimizer.zero_grad()
    nn.functional.mse_loss(torch.stack(outputs, 1), targets).backward()
    optimizer.step()
"""
FAULTY_RUNS = {
    "a method of the model": """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.readout, self.memory = lstm, head, None
    def cut(self):
        if self.memory is not None:
            self.memory = tuple(m.detach() for m in self.memory)
    def forward(self, window):
        outs = []
        for x_t in window.unbind(1):
            self.cut()
            self.memory = self.cell(x_t, self.memory)  # <- GRD022
            outs.append(self.readout(self.memory[0]))
        return outs
reader = Reader()
for s in range(0, 36, 6):
    reader.cut()
    update(reader(x[:, s : s + 6]), y[:, s : s + 6])
""",
    "only the last state is used": """
for epoch in range(5):
    h = torch.zeros(8, 16)
    for t in range(12):
        h = cell(x[:, t], h.detach())  # <- GRD022
    update([head(h)], y[:, 11:12])
""",
    "data of the state, in a loop without a model": """
for epoch in range(5):
    h, outs = torch.zeros(8, 16), []
    for t in range(12):
        h = cell(x[:, t], h.data)  # <- GRD022
        outs.append(head(h))
    update(outs, y[:, :12])
""",
    "a copy, of a layer that gets single steps": """
for epoch in range(5):
    h, outs = None, []
    for t in range(12):
        out, h = gru(x[:, t : t + 1], h)  # <- GRD022
        h = torch.tensor(h.tolist())
        outs.append(head(out[:, 0]))
    update(outs, y[:, :12])
""",
    "no gradients while the state is stored": """
state = {}
for epoch in range(5):
    state["h"], outs = torch.zeros(8, 16), []
    for t in range(12):
        h = cell(x[:, t], hx=state["h"])  # <- GRD022
        with torch.no_grad():
            state["h"] = h.clone()
        outs.append(head(h))
    update(outs, y[:, :12])
""",
}
CORRECT_RUNS = {
    "rollouts that are trained on in single steps": """
for epoch in range(6):
    states = [torch.zeros(8, 16)]
    for t in range(12):
        states.append(cell(x[:, t], states[-1].detach()))
    rows = torch.randint(0, 12, (4,))
    update([head(cell(x[:, t], states[t].detach())) for t in rows], y[:, rows])
""",
    "rollouts that are trained on as sequences": """
for epoch in range(6):
    h = torch.zeros(1, 8, 16)
    for t in range(12):
        h = gru(x[:, t : t + 1], h)[1].detach()
    update([head(gru(x)[0])], y[:, None])
""",
    "between chunks": """
h = torch.zeros(8, 16)
for s in range(0, 36, 6):
    h, outs = h.detach(), []
    for t in range(s, s + 6):
        h = cell(x[:, t], h)
        outs.append(head(h))
    update(outs, y[:, s : s + 6])
""",
    "every third step": """
for epoch in range(5):
    h, outs = torch.zeros(8, 16), []
    for t in range(12):
        h = cell(x[:, t], h.detach() if t % 3 == 0 else h)
        outs.append(head(h))
    update(outs, y[:, :12])
""",
    "a backward pass after each step": """
h = torch.zeros(8, 16)
for t in range(36):
    h = cell(x[:, t], h.detach())
    update([head(h)], y[:, t : t + 1])
""",
    "chunks whose losses are added": """
for epoch in range(5):
    h, outs = None, []
    for s in range(0, 36, 6):
        out, h = gru(x[:, s : s + 6], h)
        h = h.detach()
        outs.extend(head(out).unbind(1))
    update(outs, y)
""",
    "a fixed reservoir": """
cell.requires_grad_(False)
for epoch in range(5):
    h, outs = torch.zeros(8, 16), []
    for t in range(12):
        h = cell(x[:, t], h.detach())
        outs.append(head(h))
    update(outs, y[:, :12])
""",
    "a state from zero in each step": """
for epoch in range(5):
    update([head(cell(x[:, t])) for t in range(12)], y[:, :12])
""",
    "a warm-up without gradients, and a rollout of an actor": """
for epoch in range(5):
    h, outs = torch.zeros(8, 16), []
    with torch.no_grad():
        for t in range(12):
            h = cell(x[:, t], h)
    for t in range(12, 24):
        h = cell(x[:, t], h)
        outs.append(head(h))
    update(outs, y[:, 12:24])
    g = torch.zeros(8, 16)
    for t in range(12):
        g = cell(x[:, t], g).detach()
""",
    "an encoder of many sequences": """
for epoch in range(5):
    h, outs = torch.zeros(8, 16), []
    for t in range(12):
        h = cell(x[:, t], h)
        h = torch.where((x[:, t, :1] > 0.5), torch.zeros_like(h), h)
        outs.append(head(h))
    update(outs, y[:, :12])
""",
}


@pytest.mark.parametrize("script", FAULTY_RUNS.values(), ids=FAULTY_RUNS.keys())
def test_run_reports_states_detached_at_every_step(run_reports, script):
    run_reports(RUN_HEAD + script)


@pytest.mark.parametrize("script", CORRECT_RUNS.values(), ids=CORRECT_RUNS.keys())
def test_run_accepts_states_that_keep_their_graph(run_is_clean, script):
    run_is_clean(RUN_HEAD + script)
