"""MDL015: models that mix the samples of a batch."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 10, 4)
y = x.sum((1, 2)).gt(0).long()
rows = torch.randn(160, 6)
classes = rows[:, :3].argmax(1)

def train(model, inputs=x, targets=y, loss_of=None, batch_size=16, **options):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        for a, b in DataLoader(TensorDataset(inputs, targets), batch_size=batch_size, shuffle=True, **options):
            loss = loss_of(model, a, b) if loss_of else F.cross_entropy(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

class Net(nn.Module):
    def __init__(self, body, width=4, classes=2):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes)
"""

BROKEN = {
    "reshape for permute before a convolution": """
class Conv(Net):
    def forward(self, x):
        x = x.reshape(4, len(x), 10).permute(1, 0, 2)  # <- MDL015
        return self.head(self.body(x).mean(2))

train(Conv(nn.Conv1d(4, 4, 3)))
""",
    "attention over the batch": """
class Encoder(Net):
    def forward(self, x):
        x = self.body(x)  # <- MDL015
        return self.head(x.mean(1))

train(Encoder(nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1, enable_nested_tensor=False)))
""",
    "multi-head attention without batch_first": """
class Encoder(Net):
    def forward(self, x):
        attended, _ = self.body(x, x, x)  # <- MDL015
        return self.head((x + attended).mean(1))

train(Encoder(nn.MultiheadAttention(4, 2)))
""",
    "softmax over the batch within the model": """
class Gated(Net):
    def forward(self, x):
        weights = F.softmax(self.body(x), dim=0)  # <- MDL015
        return self.head(x * weights)

train(Gated(nn.Linear(6, 6), 6, 3), rows, classes)
""",
    "a mean over the batch": """
class Centred(Net):
    def forward(self, x):
        x = (x - x.mean(0)) / x.std(0)  # <- MDL015
        return self.head(self.body(x).relu())

train(Centred(nn.Linear(6, 4), 4, 3), rows, classes)
""",
    "a layer of softmax, whose name is told": """
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(dim=0))

def loss_of(model, a, b):
    output = model(a)  # <- MDL015
    return F.nll_loss(output.clamp_min(1e-9).log(), b)  # <- LOS007

train(model, rows, classes, loss_of)
""",
    "norm over the wrong dimension, batches by hand": """
class Normed(Net):
    def forward(self, x):
        x = F.normalize(self.body(x), dim=0)  # <- MDL015
        return self.head(x.mean(1))

model = Normed(nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for chosen in torch.randperm(160).split(20):
        optimizer.zero_grad()
        F.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
""",
    "a policy with softmax over the steps": """
policy = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(dim=0))
optimizer = torch.optim.Adam(policy.parameters())
for episode in range(12):
    states = torch.randn(15, 4)
    with torch.no_grad():
        actions = torch.stack([torch.multinomial(policy(state), 1)[0] for state in states])
    chosen = policy(states)[torch.arange(15), actions]  # <- MDL015
    optimizer.zero_grad()
    (-(chosen.log() * torch.randn(15)).mean()).backward()
    optimizer.step()
""",
    "a view that joins samples, then a regression": """
class Merge(Net):
    def forward(self, x):
        batch, steps, width = x.shape
        x = x.view(width, batch, steps)  # <- MDL015
        return self.head(x.mean(2).t()).squeeze(1)

train(Merge(nn.Linear(4, 4), 4, 1), x, x.sum((1, 2)), lambda model, a, b: F.mse_loss(model(a), b))
""",
    "a recurrent language model over the batch": """
class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(20, 8), nn.GRU(8, 8), nn.Linear(8, 20)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])  # <- MDL010

model = Language()
optimizer = torch.optim.Adam(model.parameters())
text = torch.randint(20, (900,))
for _ in range(12):
    starts = torch.randint(0, 880, (9,)).tolist()
    a, b = (torch.stack([text[s + k:s + k + 14] for s in starts]) for k in (0, 1))
    optimizer.zero_grad()
    F.cross_entropy(model(a).reshape(-1, 20), b.reshape(-1)).backward()
    optimizer.step()
""",
}

CORRECT = {
    "permute, attention with batch_first, normalised features": """
class Encoder(Net):
    def forward(self, x):
        x = self.body[0](x)
        x = F.normalize(self.body[1](x.permute(0, 2, 1)).permute(0, 2, 1), dim=-1)
        return self.head(x.softmax(1).mean(1))

train(Encoder(nn.ModuleList([nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), nn.Conv1d(4, 4, 3)])))
""",
    "batch normalisation, also written by hand and without statistics": """
class ByHand(Net):
    def __init__(self):
        super().__init__(nn.BatchNorm1d(6), 6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.training:
            mean = x.mean(0)
            self.mean.lerp_(mean.detach(), 0.1)
        else:
            mean = self.mean
        return self.head(self.body(x - mean))

train(ByHand(), rows, classes)
bare = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.ReLU(), nn.Linear(8, 3))
train(bare, rows, classes)
""",
    "a graph network, one graph per step": """
links = (torch.rand(160, 160) < 0.05).float() + torch.eye(160)

class Graph(Net):
    def forward(self, nodes, links):
        return self.head(torch.relu(links @ self.body(nodes)))

model = Graph(nn.Linear(6, 4), 4, 3)
optimizer = torch.optim.Adam(model.parameters())
known = torch.rand(160) < 0.5
for _ in range(12):
    optimizer.zero_grad()
    F.cross_entropy(model(rows, links)[known], classes[known]).backward()
    optimizer.step()
for _ in range(12):
    optimizer.zero_grad()
    F.cross_entropy(model(rows, links), classes).backward()
    optimizer.step()
""",
    "a siamese pair and a contrastive loss": """
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.Adam(net.parameters())
for chosen in torch.randperm(160).split(16):
    pair = net(torch.cat([rows[chosen], rows[chosen] + 0.1 * torch.randn(16, 6)]))
    first, second = F.normalize(pair, dim=1).chunk(2)
    optimizer.zero_grad()
    F.cross_entropy(first @ second.t() / 0.1, torch.arange(16)).backward()
    optimizer.step()
""",
    "the similarities are the model's output": """
class Clip(Net):
    def forward(self, x):
        images, texts = F.normalize(self.body(x), dim=1), F.normalize(self.head(self.body(x)), dim=1)
        return images @ texts.t() * 10

net = Clip(nn.Linear(6, 4), 4, 4)
train(net, rows, classes, lambda model, a, b: F.cross_entropy(model(a), torch.arange(len(a))))
""",
    "a discriminator with the deviation over the minibatch": """
class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(9, 1)

    def forward(self, x):
        x = self.first(x).relu()
        return self.last(torch.cat([x, x.std(0).mean().expand(len(x), 1)], 1))

judge, maker = Judge(), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
first, second = torch.optim.Adam(judge.parameters()), torch.optim.Adam(maker.parameters())
for (real,) in DataLoader(TensorDataset(rows), batch_size=16, shuffle=True):
    fake = maker(torch.randn(16, 3))
    first.zero_grad()
    labels = torch.cat([torch.ones(16, 1), torch.zeros(16, 1)])
    F.binary_cross_entropy_with_logits(judge(torch.cat([real, fake.detach()])), labels).backward()
    first.step()
    second.zero_grad()
    F.binary_cross_entropy_with_logits(judge(fake), torch.ones(16, 1)).backward()
    second.step()
""",
    "a set transformer, and one sequence per step": """
class Pool(Net):
    def forward(self, x):
        weights = self.body(x).softmax(1)
        return self.head((weights * x).sum(1))

class Tagger(Net):
    def forward(self, sentence):
        return self.head(self.body(sentence.view(len(sentence), 1, -1))[0].view(len(sentence), -1))

train(Pool(nn.Linear(4, 1)))
model = Tagger(nn.LSTM(6, 4), 4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    F.cross_entropy(model(rows[step * 9:step * 9 + 9 + step % 3]), classes[step * 9:step * 9 + 9 + step % 3]).backward()
    optimizer.step()
""",
    "the frames of one video per step, and a label for each": """
class Video(Net):
    def forward(self, frames):
        features = self.body[0](frames).mean((2, 3))
        return self.head(self.body[1](features)[0])

model = Video(nn.ModuleList([nn.Conv2d(1, 4, 3), nn.LSTM(4, 4)]))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(12):
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(11, 1, 8, 9)), torch.randint(2, (11,))).backward()
    optimizer.step()
""",
    "a physics network on a grid, and an autoencoder": """
class Field(Net):
    def forward(self, points):
        u = self.head(torch.tanh(self.body(points)))
        return u, torch.gradient(u.squeeze(1))[0]

grid = torch.linspace(0, 1, 50).unsqueeze(1)
model = Field(nn.Linear(1, 4), 4, 1)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(12):
    u, change = model(grid)
    optimizer.zero_grad()
    ((change - grid.squeeze(1)) ** 2).mean().backward()
    optimizer.step()
code = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 6))
train(code, rows, classes, lambda model, a, b: F.mse_loss(model(a), a))
""",
    "prototypes of a support set": """
class Prototypes(Net):
    def forward(self, support, query):
        means = self.body(support).view(3, 5, -1).mean(1)
        return -torch.cdist(self.body(query), means)

model = Prototypes(nn.Linear(6, 4))
optimizer = torch.optim.Adam(model.parameters())
order = classes.argsort(stable=True)
for _ in range(12):
    support = torch.cat([rows[classes == c][torch.randperm(20)[:5]] for c in range(3)])
    query, labels = rows[(chosen := torch.randperm(160)[:15])], classes[chosen]
    optimizer.zero_grad()
    F.cross_entropy(model(support, query), labels).backward()
    optimizer.step()
""",
    "experts with a capacity": """
class Experts(Net):
    def forward(self, x):
        gate = self.body(x).softmax(1)
        weight, expert = gate.max(1)
        place = F.one_hot(expert, 2).cumsum(0).gather(1, expert[:, None]).squeeze(1)
        return self.head(x * (weight * (place <= 10)).unsqueeze(1))

train(Experts(nn.Linear(6, 2), 6, 3), rows, classes)
""",
    "mixup within the model, and dropout": """
class Mixing(Net):
    def forward(self, x):
        if self.training:
            x = 0.9 * x + 0.1 * x[torch.randperm(len(x))]
        return self.head(F.dropout(self.body(x), 0.2, self.training))

train(Mixing(nn.Linear(6, 4), 4, 3), rows, classes)
""",
    "a model that goes on with its own output": """
class Solver(Net):
    def forward(self, x):
        for _ in range(4):
            x = x + 0.1 * torch.tanh(self.body(x))
        return self.head(x)

train(Solver(nn.Linear(6, 6), 6, 3), rows, classes)
""",
    "a U-Net": """
class Unet(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.body, self.head = nn.ModuleList(layers[:2]), layers[2]

    def forward(self, x):
        down = self.body[0](x).relu()
        low = self.body[1](F.max_pool2d(down, 2)).relu()
        return self.head(torch.cat([down, F.interpolate(low, scale_factor=2)], 1))

net = Unet(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(8, 2, 1))
images = torch.randn(64, 1, 8, 8)
train(net, images, (images[:, 0] > 0).long())
""",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN.keys())
def test_run_reports_models_that_mix_samples(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_models_that_do_not(run_is_clean, script):
    run_is_clean(HEAD + script)


LINT_HEAD = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.attention = {layer}
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, tokens):
        x = self.embed(tokens)
        {body}

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for tokens, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(tokens), y).backward()
    optimizer.step()
"""
LAYER = "nn.MultiheadAttention(width, 2)"
ENCODER = "nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 2{first}), 2)"
LINT_BROKEN = {
    "the first token": (LAYER, "a, _ = self.attention(x, x, x); return self.head(a[:, 0])"),
    "with a residual": (LAYER, "a, _ = self.attention(x, x, x); return self.head(self.norm(x + a)[:, 0])"),
    "an encoder": (ENCODER.format(first=""), "return self.head(self.attention(x)[:, 0, :])"),
    "the mean over the tokens": (ENCODER.format(first=""), "return self.head(self.attention(x).mean(1))"),
}
LINT_CORRECT = {
    "batch first": (
        "nn.MultiheadAttention(width, 2, batch_first=True)",
        "a, _ = self.attention(x, x, x); return self.head(a[:, 0])",
    ),
    "an encoder": (ENCODER.format(first=", batch_first=True"), "return self.head(self.attention(x)[:, 0])"),
    "transposed": (LAYER, "x = x.transpose(0, 1); a, _ = self.attention(x, x, x); return self.head(a[0])"),
    "transposed and back": (
        ENCODER.format(first=""),
        "h = self.attention(x.transpose(0, 1)).transpose(0, 1); return self.head(h[:, 0])",
    ),
    "the weights": (LAYER, "a, w = self.attention(x, x, x); print(w[:, 0]); return self.head(a.mean(0))"),
}


@pytest.mark.parametrize(("layer", "body"), LINT_BROKEN.values(), ids=LINT_BROKEN)
def test_lint_reports_attention_over_the_batch(lint_reports, layer, body):
    lint_reports(LINT_HEAD.replace("{layer}", layer + "  # <- MDL015").replace("{body}", body))


@pytest.mark.parametrize(("layer", "body"), LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_accepts_other_layouts(lint_is_clean, layer, body):
    lint_is_clean(LINT_HEAD.replace("{layer}", layer).replace("{body}", body))
