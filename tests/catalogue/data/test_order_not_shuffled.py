"""DAT003: sorted by class, or in an order that is meant."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

labels = torch.arange(4).repeat_interleave(80)
inputs = torch.randn(320, 12) + labels[:, None]
model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

def fit(loader, epochs=3, loss=F.cross_entropy, net=model, opt=optimizer):
    for epoch in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            loss(net(x), y).backward()
            opt.step()
"""

GUILTY = {
    "a table": """
loader = DataLoader(TensorDataset(inputs, labels), batch_size=16)  # <- DAT003
fit(loader)
""",
    "a folder of classes": """
class Folder(Dataset):
    def __init__(self, per_class):
        self.samples = [(f"{c}/{i}.png", c) for c in range(4) for i in range(per_class)]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, i):
        path, c = self.samples[i]
        return torch.randn(12) + c, c
def make_loaders():
    return DataLoader(Folder(50), batch_size=10, shuffle=False)  # <- DAT003
fit(make_loaders())
""",
    "two classes, dictionaries, a loop of one's own": """
class Pairs(Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, i):
        return {"x": torch.randn(12), "label": float(i >= 100)}
class Run:
    def __init__(self):
        self.net = nn.Linear(12, 1)
        self.opt = torch.optim.Adam(self.net.parameters())
        self.loader = DataLoader(Pairs(), batch_size=20)  # <- DAT003
    def go(self):
        for epoch in range(2):
            for batch in self.loader:
                loss = F.binary_cross_entropy_with_logits(self.net(batch["x"]).squeeze(1), batch["label"].float())
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
Run().go()
""",
    "accumulation in small windows, in bfloat16": """
loader = DataLoader(TensorDataset(inputs, labels), batch_size=8)  # <- DAT003
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.CrossEntropyLoss()(model(x), y) / 2
        loss.backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
""",
}

QUIET = {
    "shuffled": "fit(DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True))",
    "shuffled before": """
order = torch.randperm(320)
fit(DataLoader(TensorDataset(inputs[order], labels[order]), batch_size=16))
""",
    "a single pass": "fit(DataLoader(TensorDataset(inputs, labels), batch_size=16), epochs=1)",
    "held-out data": """
train_loader = DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(inputs + 0.1, labels), batch_size=16)
for epoch in range(3):
    fit(train_loader, epochs=1)
    with torch.no_grad():
        print(sum((model(x).argmax(1) == y).sum().item() for x, y in val_loader))
""",
    "windows over a series with regimes": """
series = torch.randn(332)
windows = series.unfold(0, 12, 1)[:320]
fit(DataLoader(TensorDataset(windows, labels), batch_size=16))
""",
    "a clock among the features": """
inputs[:, 0] = torch.linspace(-1, 1, 320)
fit(DataLoader(TensorDataset(inputs, labels), batch_size=16))
""",
    "classes that come again": """
labels = (torch.arange(320) // 20) % 4
fit(DataLoader(TensorDataset(inputs, labels), batch_size=10))
""",
    "regression": """
def loss(out, y):
    return F.mse_loss(out[:, 0], y.float())
fit(DataLoader(TensorDataset(inputs, labels), batch_size=16), loss=loss)
""",
    "the blocks are another column": """
answers = torch.randint(0, 4, (320,))
loader = DataLoader(TensorDataset(inputs, labels, answers), batch_size=16)
for epoch in range(3):
    for x, query, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
    "one batch, again and again": """
x, y = next(iter(DataLoader(TensorDataset(inputs, labels), batch_size=16)))
fit([(x, y)] * 20)
small = DataLoader(Subset(TensorDataset(inputs, labels), range(0, 320, 10)), batch_size=32)
fit(small, epochs=20)
""",
    "one window for the whole epoch": """
loader = DataLoader(TensorDataset(inputs, labels), batch_size=16)
for epoch in range(6):
    optimizer.zero_grad()
    for x, y in loader:
        (F.cross_entropy(model(x), y) / len(loader)).backward()
    optimizer.step()
""",
    "a recurrent model": """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 4)
    def forward(self, x):
        return self.out(self.rnn(x[:, :, None])[0][:, -1])
net = Tagger()
fit(DataLoader(TensorDataset(inputs, labels), batch_size=16), net=net, opt=torch.optim.Adam(net.parameters()))
""",
    "a stream": """
class Stream(IterableDataset):
    def __iter__(self):
        return zip(inputs, labels)
fit(DataLoader(Stream(), batch_size=16))
""",
    "a sampler of one's own": """
class ByLength(torch.utils.data.Sampler):
    def __len__(self):
        return 320
    def __iter__(self):
        return iter(range(320))
fit(DataLoader(TensorDataset(inputs, labels), batch_size=16, sampler=ByLength()))
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_found(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes(quiet, script):
    quiet(HEAD + script)
