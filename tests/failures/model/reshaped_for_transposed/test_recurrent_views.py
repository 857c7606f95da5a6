"""MDL017: outputs and states of recurrent layers that a view cuts into rows."""

import pytest

PROGRAM = """
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

class Net(nn.Module):
    def __init__(self, hidden=32, layers=2):
        super().__init__()
        self.hidden = hidden
        self.embedding = nn.Embedding(100, 16)
        self.rnn = RNN
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(64, 4)

    def score(self, states):
        return self.fc(self.drop(states))

    def forward(self, x, lengths):
        batch_size, steps = x.shape
        BODY

model = Net()
optimizer = torch.optim.Adam(model.parameters())
for x, lengths, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x, lengths), y)
    loss.backward()
    optimizer.step()
"""
BOTH_WAYS = "nn.LSTM(16, hidden, batch_first=True, bidirectional=True)"
TIME_FIRST = "nn.LSTM(16, hidden)"

FAULTY = {
    "both directions of an LSTM": (BOTH_WAYS, """
packed = pack_padded_sequence(self.embedding(x), lengths, batch_first=True)
_, (h_n, _) = self.rnn(packed)
h = h_n.view(x.size(0), -1)  # <- MDL017
return self.fc(self.drop(h))
"""),
    "a named size": (BOTH_WAYS, """
out, (h_n, c_n) = self.rnn(self.embedding(x))
return self.fc(h_n.reshape(batch_size, 2 * self.hidden))  # <- MDL017
"""),
    "several layers of a GRU": ("nn.GRU(16, hidden, num_layers=layers, batch_first=True)", """
out, hidden = self.rnn(self.embedding(x))
return self.fc(hidden.contiguous().view(len(x), -1))  # <- MDL017
"""),
    "its own second size": ("nn.RNN(16, hidden, 2, batch_first=True)", """
h = self.rnn(self.embedding(x))[1]
return self.fc(torch.reshape(h, (h.size(1), -1)))  # <- MDL017
"""),
    "outputs with the time first": (TIME_FIRST, """
steps_first = self.embedding(x).transpose(0, 1)
out, _ = self.rnn(steps_first)
return self.fc(out.contiguous().view(steps_first.size(1), -1))  # <- MDL017
"""),
    "outputs and the batch before the transpose": ("nn.GRU(16, hidden)", """
e = self.embedding(x)
out, _ = self.rnn(e.permute(1, 0, 2))
return self.fc(out.reshape(e.shape[0], -1))  # <- MDL017
"""),
}  # fmt: skip

CORRECT = {
    "transposed first": (BOTH_WAYS, """
_, (h_n, _) = self.rnn(self.embedding(x))
return self.fc(h_n.transpose(0, 1).reshape(x.size(0), -1))
"""),
    "the directions side by side": (BOTH_WAYS, """
_, (h_n, _) = self.rnn(self.embedding(x))
return self.fc(torch.cat([h_n[-2], h_n[-1]], 1).view(x.size(0), -1))
"""),
    "one state": ("nn.LSTM(16, hidden, batch_first=True)", """
_, (h_n, _) = self.rnn(self.embedding(x))
return self.fc(h_n.view(x.size(0), -1))
"""),
    "split into layers and directions": (BOTH_WAYS, """
_, (h_n, _) = self.rnn(self.embedding(x))
h = h_n.view(1, 2, x.size(0), -1)[-1]
return self.fc(h[0] + h[1])
"""),
    "the last layer": ("nn.GRU(16, hidden, 2, batch_first=True)", """
_, h = self.rnn(self.embedding(x))
return self.fc(h[-1].view(x.size(0), -1))
"""),
    "rows of one state": (BOTH_WAYS, """
_, (h_n, _) = self.rnn(self.embedding(x))
return self.fc(h_n.view(-1, self.hidden))
"""),
    "one sentence": (TIME_FIRST, """
out, _ = self.rnn(self.embedding(x).view(len(x), 1, -1))
return self.fc(out.view(len(x), -1))
"""),
    "outputs with the batch first": ("nn.LSTM(16, hidden, batch_first=True)", """
out, _ = self.rnn(self.embedding(x))
return self.fc(out.contiguous().view(x.size(0), -1))
"""),
    "time steps as rows": (TIME_FIRST, """
e = self.embedding(x).transpose(0, 1)
out, _ = self.rnn(e)
return self.fc(out.view(e.size(0) * e.size(1), -1)) + self.fc(out.view(e.size(0), -1))
"""),
    "transposed back": (TIME_FIRST, """
e = self.embedding(x)
out, _ = self.rnn(e.transpose(0, 1))
return self.fc(out.transpose(0, 1).reshape(e.size(0), -1))
"""),
}  # fmt: skip


def program(layer: str, body: str) -> str:
    """Return the program with a recurrent layer and the body of its forward."""
    return PROGRAM.replace("= RNN", f"= {layer}").replace("BODY", body.strip().replace("\n", "\n        "))


@pytest.mark.parametrize(("layer", "body"), FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_views_that_mix_samples(lint_reports, layer, body):
    lint_reports(program(layer, body))


@pytest.mark.parametrize(("layer", "body"), CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_programs(lint_is_clean, layer, body):
    lint_is_clean(program(layer, body), "MDL017")
