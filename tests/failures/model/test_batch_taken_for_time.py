"""MDL010: recurrent layers that treat the batch dimension as time."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(44, 10, 3)
y = x.sum((1, 2)).gt(0).long()
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=16, shuffle=True)

def train(model, loader=loader, epochs=2, of=lambda x: x):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(of(inputs)), targets).backward()
            optimizer.step()
"""

BROKEN = {
    "an LSTM in a class": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        steps, _ = self.rnn(x)  # <- MDL010
        return self.head(steps[:, -1])

train(Classifier())
""",
    "images as rows": """
class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(6, 8, num_layers=2, bidirectional=True), nn.Linear(16, 2)

    def forward(self, x):
        hidden = torch.zeros(4, x.shape[1], 8)
        steps, _ = self.rnn(x, hidden)  # <- MDL010
        return self.head(steps.mean(1))

images = torch.randn(48, 1, 5, 6)
labels = images.sum((1, 2, 3)).gt(0).long()
train(Rows(), DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True), of=lambda x: x.reshape(-1, 5, 6))
""",
    "tokens behind an embedding": """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.encoder, self.head = nn.Embedding(20, 4), nn.RNN(4, 8), nn.Linear(8, 2)

    def encode(self, tokens):
        return self.encoder(self.embed(tokens))  # <- MDL010

    def forward(self, tokens):
        return self.head(self.encode(tokens)[0].mean(1))

tokens = torch.randint(20, (48, 7))
data = [(row, int(row.sum() > 70)) for row in tokens]
train(Tagger(), DataLoader(data, batch_size=8, shuffle=True))
""",
    "the layer itself is the model": """
rnn = nn.GRU(3, 2)
optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
for inputs, targets in loader:
    steps, _ = rnn(inputs)  # <- MDL010
    optimizer.zero_grad()
    nn.functional.cross_entropy(steps[:, -1], targets).backward()
    optimizer.step()
""",
    "features without time": """
class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(30, 8), nn.Linear(8, 2)

    def forward(self, x):
        steps, _ = self.rnn(x.flatten(1))  # <- MDL010
        return self.head(steps)

train(Flat())
""",
    "features as one step": """
class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(30, 8), nn.Linear(8, 2)

    def forward(self, x):
        steps, _ = self.rnn(x.flatten(1).unsqueeze(1))  # <- MDL010
        return self.head(steps[:, -1])

train(Flat())
""",
    "one feature, batches by hand": """
class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(1, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])  # <- MDL010

model = Counter()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(16):
    rows = torch.randperm(44)[:15]
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x[rows][..., :1]), y[rows, None].float()).backward()
    optimizer.step()
""",
    "one feature, a hand-made loader and a mean over what is taken for time": """
class Batches:
    def __iter__(self):
        for rows in torch.randperm(44).split(11):
            yield x[rows].mean(2, keepdim=True), y[rows]

class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(1, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0]).mean(1)  # <- MDL010

train(Counter(), Batches(), epochs=4)
""",
    "accumulated, under autocast": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleDict({"rnn": nn.GRU(3, 8), "head": nn.Linear(8, 2)})

    def forward(self, x):
        return self.body["head"](self.body["rnn"](x)[0][:, -1])  # <- MDL010

model = Classifier()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    for number, (inputs, targets) in enumerate(DataLoader(data, batch_size=11, shuffle=True), 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs), targets) / 2
        loss.backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
}

CORRECT = {
    "batch_first": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])

train(Classifier())
""",
    "transposed": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x.transpose(0, 1))[0][-1])

train(Classifier())
""",
    "collated with time first": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][-1])

def collate(samples):
    inputs = nn.utils.rnn.pad_sequence([each[: int(each.shape[0] - label)] for each, label in samples])
    return inputs, torch.tensor([int(label) for _, label in samples])

train(Classifier(), DataLoader(data, batch_size=10, shuffle=True, collate_fn=collate))
""",
    "as many steps as samples": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x.transpose(0, 1))[0][-1])

train(Classifier(), DataLoader(data, batch_size=10, shuffle=True))
train(Classifier(), DataLoader(data, batch_size=10, shuffle=True, drop_last=True))
""",
    "one sample after the other": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return torch.stack([self.head(self.rnn(each)[0][-1]) for each in x])

train(Classifier(), DataLoader(data, batch_size=10, shuffle=True), epochs=1)
train(Classifier(), DataLoader(data, batch_size=16, shuffle=True), epochs=1)
""",
    "packed": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        lengths = torch.full((len(x),), x.shape[1])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.rnn(packed)[1][0][-1])

train(Classifier())
""",
    "a series in order": """
class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0])

series = torch.randn(40, 3)
targets = series.sum(1).gt(0).long().roll(1)
train(Forecast(), DataLoader(TensorDataset(series, targets), batch_size=16))
""",
    "rows of each image as the batch": """
class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.across, self.head = nn.GRU(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        samples, steps, features = x.shape
        flat = x.reshape(samples * 2, steps // 2, features).transpose(0, 1)
        return self.head(self.across(flat)[0][-1].view(samples, 2, -1).mean(1))

train(Rows())
""",
    "rollouts next to a loader": """
class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0]).flatten(0, 1)

policy = Policy()
optimizer = torch.optim.Adam(policy.parameters())
for inputs, targets in DataLoader(data, batch_size=16, shuffle=True):
    rollout, actions = torch.randn(16, 5, 3), torch.randint(2, (80,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(policy(rollout), actions).backward()
    optimizer.step()
""",
    "time first, an output for each step, batches by hand": """
class Tagger(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.rnn, self.head = nn.GRU(features, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0])

for features in (1, 3):
    model = Tagger(features)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(12):
        inputs = torch.randn(20, 16, features)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs.cumsum(0)[..., :1]).backward()
        optimizer.step()
""",
    "the steps of one series of one feature": """
model = nn.GRU(1, 2)
optimizer = torch.optim.Adam(model.parameters())
for step in range(12):
    inputs = torch.randn(20, 1, 1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs)[0][:, 0], inputs.cumsum(0).flatten().gt(0).long()).backward()
    optimizer.step()
""",
    "no loader": """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][-1])

train(Classifier(), [(torch.randn(16, 5, 3), torch.randint(2, (5,))) for _ in range(12)])
""",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_run_reports_it(run_reports, script):
    (found,) = run_reports(HEAD + script).findings
    assert "treats the batch dimension as time" in found.message


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run, script):
    assert "MDL010" not in {found.code for found in run(HEAD + script).findings}


def test_message_has_the_numbers(run_reports):
    (found,) = run_reports(HEAD + BROKEN["an LSTM in a class"]).findings
    assert "16 time steps of 10 sequences" in found.message
    (found,) = run_reports(HEAD + BROKEN["features without time"]).findings
    assert "16 and 12 time steps" in found.message


LINT_HEAD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8, **options):
        super().__init__()
        self.rnn = {layer}
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, x):
{body}

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
LINT_BROKEN = {
    "the last step": ("nn.LSTM(3, width)", ["out, _ = self.rnn(x)", "return self.head(out[:, -1, :])"]),
    "the last step of a GRU": ("nn.GRU(3, width, 2)", ["out, h = self.rnn(x)", "return self.head(out[:, -1])"]),
    "the first item": ("nn.GRU(3, width)", ["out = self.rnn(x)[0]", "return self.head(out[:, -1])"]),
    "after a norm": ("nn.LSTM(3, width)", ["out, _ = self.rnn(x)", "return self.head(self.norm(out)[:, -1])"]),
    "the mean": ("nn.LSTM(3, width)", ["out, _ = self.rnn(x)", "return self.head(out.mean(dim=1))"]),
    "told so": ("nn.RNN(3, width, batch_first=False)", ["out, _ = self.rnn(x)", "return self.head(out[:, -1])"]),
}
LINT_BROKEN |= {
    "one feature per value": (
        "nn.LSTM(1, width)", ["out, _ = self.rnn(x.unsqueeze(-1))", "return self.head(out[:, -1])"]
    ),
    "one feature by its number": (
        "nn.GRU(1, width)", ["out, _ = self.rnn(x.unsqueeze(2))", "return self.head(out[:, -1, :])"]
    ),
    "one feature by view": (
        "nn.RNN(1, width)", ["out, _ = self.rnn(x.view(-1, 10, 1))", "return self.head(out.mean(1))"]
    ),
}  # fmt: skip
LINT_CORRECT = {
    "a batch of one sample": (
        "nn.LSTM(3, width)",
        ["out, _ = self.rnn(x.unsqueeze(1))", "return self.head(out[:, 0])"],
    ),
    "a batch of one sample with one feature": (
        "nn.LSTM(1, width)",
        ["out, _ = self.rnn(x.view(-1, 1, 1))", "return self.head(out[:, -1])"],
    ),
    "a dimension that is not known": (
        "nn.LSTM(3, width)",
        ["out, _ = self.rnn(x.unsqueeze(dim=1))", "return self.head(out[:, 0])"],
    ),
    "one feature, time first": (
        "nn.LSTM(1, width)",
        ["out, _ = self.rnn(x.unsqueeze(-1).transpose(0, 1))", "return self.head(out[-1])"],
    ),
    "batch first": ("nn.LSTM(3, width, batch_first=True)", ["out, _ = self.rnn(x)", "return self.head(out[:, -1])"]),
    "by position": ("nn.LSTM(3, width, 1, True, True)", ["out, _ = self.rnn(x)", "return self.head(out[:, -1])"]),
    "options": ("nn.LSTM(3, width, **options)", ["out, _ = self.rnn(x)", "return self.head(out[:, -1])"]),
    "time first": ("nn.LSTM(3, width)", ["out, _ = self.rnn(x.transpose(0, 1))", "return self.head(out[-1])"]),
    "transposed back": (
        "nn.LSTM(3, width)",
        ["out, _ = self.rnn(x.transpose(0, 1))", "out = out.transpose(0, 1)", "return self.head(out[:, -1])"],
    ),
    "the hidden state": ("nn.LSTM(3, width)", ["_, (h, c) = self.rnn(x.transpose(0, 1))", "return self.head(h[-1])"]),
    "one sample": (
        "nn.LSTM(3, width)",
        ["out, _ = self.rnn(x.view(len(x), 1, -1))", "return self.head(out[:, -1])"],
    ),
    "the mean over time": (
        "nn.LSTM(3, width)",
        ["out, _ = self.rnn(x.transpose(0, 1))", "return self.head(out.mean(0))"],
    ),
}


def lint_script(layer, body, mark=""):
    lines = "\n".join(f"        {line}" for line in body)
    return LINT_HEAD.replace("{layer}", layer + mark).replace("{body}", lines)


@pytest.mark.parametrize(("layer", "body"), LINT_BROKEN.values(), ids=LINT_BROKEN)
def test_lint_reports_outputs_that_are_read_as_batch_first(lint_reports, layer, body):
    lint_reports(lint_script(layer, body, "  # <- MDL010"))


@pytest.mark.parametrize(("layer", "body"), LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_accepts_other_layouts(lint_is_clean, layer, body):
    lint_is_clean(lint_script(layer, body))


STACKED = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, size, width, batch_first):
        super().__init__()
        self.rnn = nn.GRU(size, width, batch_first=batch_first)

    def forward(self, x):
        return self.rnn(x)[0]

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = {layers}

    def forward(self, x):
        return self.layers(x)
"""
STACKS = {
    "the first one": "nn.Sequential(*[Block(3 if i == 0 else 8, 8, batch_first=i == 0) for i in range(3)])",
    "a conditional value": "nn.Sequential(*[Block(8, 8, batch_first=True if i == 0 else False) for i in range(3)])",
    "a list": "nn.ModuleList([nn.LSTM(8, 8, batch_first=(k == 0)) for k in range(3)])",
    "all but the first one": "nn.ModuleList(nn.LSTM(8, 8, batch_first=n > 0) for n in range(3))",
}
STACKS_FINE = {
    "all": "nn.Sequential(*[Block(3 if i == 0 else 8, 8, batch_first=True) for i in range(3)])",
    "a setting": "nn.Sequential(*[Block(3 if i == 0 else 8, 8, batch_first=width > 4) for i in range(3)])",
    "a list of settings": "nn.ModuleList([nn.LSTM(8, 8, batch_first=b) for b in (True, False)])",
    "one layer": "nn.LSTM(3, 8, batch_first=width == 8)",
}


@pytest.mark.parametrize("layers", STACKS.values(), ids=STACKS)
def test_lint_reports_stacks_of_different_layouts(lint_reports, layers):
    lint_reports(STACKED.replace("{layers}", f"{layers}  # <- MDL010"))


@pytest.mark.parametrize("layers", STACKS_FINE.values(), ids=STACKS_FINE)
def test_lint_accepts_stacks_of_one_layout(lint_is_clean, layers):
    lint_is_clean(STACKED.replace("{layers}", layers), "MDL010")
