"""MDL019: outputs of layers that are overwritten or never read."""

import pytest

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(2)])
        self.drop = nn.Dropout(0.1)
    def forward(self, x, extra=None):
{body}
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 2, (8,))).backward()
    optimizer.step()
"""
FAULTY = {
    "two layers": """
h = F.relu(self.a(x))  # <- MDL019
h = F.relu(self.b(x))
return self.c(h)
""",
    "a statement in between": """
h = self.a(x)  # <- MDL019
scale = x.mean()
h = self.b(x) * scale
return self.c(h)
""",
    "never read": """
hidden = self.a(x)  # <- MDL019
out = self.c(self.b(x))
return out
""",
    "in a branch": """
if extra is None:
    y = torch.tanh(self.a(x))  # <- MDL019
    y = torch.tanh(self.b(x))
else:
    y = self.b(extra)
return self.c(y)
""",
    "a method": """
return self.head(x)
""",
}
FAULTY = {
    name: SCRIPT.replace("{body}", "".join(f"        {line}\n" for line in body.strip().splitlines()))
    for name, body in FAULTY.items()
}
HEAD_METHOD = """    def head(self, x):
        z = self.a(x)  # <- MDL019
        z = self.b(x).relu()
        return self.c(z)
model = Net()"""
FAULTY["a method"] = FAULTY["a method"].replace("model = Net()", HEAD_METHOD)
CORRECT = {
    "the same layer is called again": """
unused = self.a(x)
return self.c(F.relu(self.b(self.a(x))))
""",
    "read in between": """
h = F.relu(self.a(x))
skip = h + x
h = F.relu(self.b(x))
return self.c(h + skip)
""",
    "passed on": """
h = F.relu(self.a(x))
h = F.relu(self.b(h))
return self.c(h)
""",
    "overwritten in a branch": """
h = self.a(x)
if extra is not None:
    h = self.b(extra)
return self.c(h)
""",
    "a loop": """
h = x
for block in self.blocks:
    h = block(h)
h = self.a(h)
y = self.c(h)
return y
""",
    "added up": """
y = self.a(x)
y += self.b(x)
return self.c(y)
""",
    "for its statistics": """
with torch.no_grad():
    y = self.a(x)
    y = self.b(x)
return self.c(self.b(self.a(x)))
""",
    "a name for unused values": """
_ = self.a(x)
return self.c(self.b(x))
""",
    "memory is freed": """
h = self.a(x)
y = self.c(h)
h = None
return y
""",
    "a loop that carries it": """
h = self.a(x)
for _ in range(2):
    y = self.b(h)
    h = self.a(x) + y
return self.c(h)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_lost_output(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("body", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_models(lint_is_clean, body):
    lines = "".join(f"        {line}\n" for line in body.strip().splitlines())
    lint_is_clean(SCRIPT.replace("{body}", lines), "MDL019")


FAULTY_STATES = {
    "a decoder": """
def decode(decoder, token, decoder_hidden, max_length):
    outputs = []
    for t in range(max_length):
        out, hidden = decoder(token, decoder_hidden)  # <- MDL019
        token = out.argmax(dim=1)
        outputs.append(out)
    return outputs
""",
    "in another arm": """
class Seq2seq(nn.Module):
    def forward(self, token, hidden, memory, steps):
        logits = []
        for t in range(steps):
            if self.use_attention:
                out, hidden, weights = self.decoder(token, hidden, memory)
            else:
                out, new_hidden = self.decoder.forward(input=token, hidden=hidden)  # <- MDL019
            token = out.argmax(-1)
            logits.append(out)
        return logits
""",
    "a cell": """
def unroll(cell, x, state):
    found = []
    for i in range(x.size(1)):
        out, next_state = cell(x[:, i], state)  # <- MDL019
        found.append(out)
    return found
""",
    "while": """
def sample(rnn, token, h, length):
    found = []
    while len(found) < length:
        out, hn = rnn(token, h)  # <- MDL019
        token = out.argmax(-1)
        found.append(token)
    return found
""",
}
CORRECT_STATES = {
    "passed on": FAULTY_STATES["a decoder"].replace("out, hidden =", "out, decoder_hidden ="),
    "assigned later": FAULTY_STATES["a cell"].replace(
        "        found.append", "        state = next_state\n        found.append"
    ),
    "read later": FAULTY_STATES["a decoder"].replace("return outputs", "return outputs, hidden"),
    "batches": """
def predict(model, x, hidden, n_batches):
    found = []
    for i in range(n_batches):
        out, new_hidden = model(x[i], hidden)
        found.append(out)
    return found
""",
    "training": """
def train(model, x, y, hidden, optimizer, steps):
    for i in range(steps):
        out, new_hidden = model(x[i], hidden)
        loss = ((out - y[i]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "the first state": FAULTY_STATES["a cell"].replace("state)", "initial_state)"),
    "ignored on purpose": FAULTY_STATES["a cell"].replace("out, next_state", "out, _"),
    "the same input": """
def score(cell, x, state, steps):
    found = []
    for i in range(steps):
        out, next_state = cell(x, state)
        found.append(out)
    return found
""",
}


@pytest.mark.parametrize("script", FAULTY_STATES.values(), ids=FAULTY_STATES)
def test_lint_reports_lost_states(lint_reports, script):
    lint_reports("import torch\nfrom torch import nn\n" + script)


@pytest.mark.parametrize("script", CORRECT_STATES.values(), ids=CORRECT_STATES)
def test_lint_accepts_states_that_are_passed_on(lint_is_clean, script):
    script = script.replace("  # <- MDL019", "")
    lint_is_clean("import torch\nfrom torch import nn\n" + script, "MDL019")
