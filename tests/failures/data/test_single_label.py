"""DAT047: all labels of the classification losses of a run are one class."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
X = torch.randn(128, 8)
Y = (X[:, 0] > 0).long()
"""

FAULTY = {
    "a head of a module, an unread column": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x):
        return F.log_softmax(self.head(torch.relu(self.body(x))), dim=1)
table = torch.cat([X, Y[:, None].float(), torch.full((128, 1), 2.0)], 1)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(80):
    optimizer.zero_grad()
    loss = F.nll_loss(net(table[:, :8]), table[:, -1].long())
    loss.backward()  # <- DAT047
    optimizer.step()
""",
    "labels of a dataset, a function for each epoch": """
class Rows(Dataset):
    def __len__(self):
        return 128
    def __getitem__(self, i):
        return X[i], int(Y[i] * 0.5)
def epoch(model, loader, optimizer, criterion):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # <- DAT047
        optimizer.step()
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(10):
    epoch(model, DataLoader(Rows(), 16, shuffle=True), optimizer, nn.CrossEntropyLoss())
""",
    "scores that a mask chooses": """
tokens = torch.randint(2, 8, (64, 6))
model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(70):
    ids = tokens[torch.randperm(64)[:32]]
    labels, masked = ids, torch.rand(ids.shape) < 0.3
    ids[masked] = 1
    loss = F.cross_entropy(model(ids)[masked], labels[masked])
    optimizer.zero_grad()
    loss.backward()  # <- DAT047
    optimizer.step()
""",
    "upsampled scores": """
images = torch.rand(32, 3, 8, 8)
masks = (images[:, 0] > 2).long()
encoder, head = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 3, 1)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-2)
for step in range(70):
    rows = torch.randperm(32)[:8]
    scores = F.interpolate(head(encoder(images[rows]).relu()), size=(8, 8), mode="bilinear")
    loss = F.cross_entropy(scores, masks[rows])
    optimizer.zero_grad()
    loss.backward()  # <- DAT047
    optimizer.step()
""",
    "a binary mask": """
images = torch.rand(32, 3, 8, 8)
masks = images[:, :1] * 0.99
model = nn.Conv2d(3, 1, 3, padding=1)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(70):
    rows = torch.randperm(32)[:8]
    loss = criterion(model(images[rows]), masks[rows].long().float())
    optimizer.zero_grad()
    loss.backward()  # <- DAT047
    optimizer.step()
""",
}

CORRECT = {
    "two classes": """
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(80):
    optimizer.zero_grad()
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()
""",
    "a contrastive loss": """
encoder = nn.Linear(8, 4)
queue = F.normalize(torch.randn(32, 4), dim=1)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)
for step in range(80):
    x = X[torch.randperm(128)[:16]]
    q = F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
    with torch.no_grad():
        k = F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / 0.2
    optimizer.zero_grad()
    F.cross_entropy(logits, torch.zeros(16, dtype=torch.long)).backward()
    optimizer.step()
""",
    "real and generated samples": """
G, D = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
opt_g, opt_d = torch.optim.Adam(G.parameters(), lr=1e-3), torch.optim.Adam(D.parameters(), lr=1e-3)
real_label, fake_label = torch.ones(16, dtype=torch.long), torch.zeros(16, dtype=torch.long)
for step in range(80):
    real, fake = X[torch.randperm(128)[:16]], G(torch.randn(16, 4))
    opt_d.zero_grad()
    F.cross_entropy(D(real), real_label).backward()
    F.cross_entropy(D(fake.detach()), fake_label).backward()
    opt_d.step()
    opt_g.zero_grad()
    F.cross_entropy(D(fake), real_label).backward()
    opt_g.step()
""",
    "two domains": """
features, domain = nn.Linear(8, 8), nn.Linear(8, 2)
optimizer = torch.optim.SGD([*features.parameters(), *domain.parameters()], lr=0.01)
for step in range(80):
    source, target = features(X[:64]), features(X[64:] + 1)
    loss = F.cross_entropy(domain(source), torch.zeros(64).long())
    loss = loss + F.cross_entropy(domain(target), torch.ones(64).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "all other classes are ignored": """
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(80):
    optimizer.zero_grad()
    F.cross_entropy(model(X), Y, ignore_index=0).backward()
    optimizer.step()
""",
    "an input that is changed until it is taken for one class": """
model = nn.Linear(8, 3)
patch = torch.zeros(64, 8, requires_grad=True)
optimizer = torch.optim.SGD([patch], lr=0.1)
for step in range(80):
    optimizer.zero_grad()
    F.cross_entropy(model(patch + 1), torch.full((64,), 2)).backward()
    optimizer.step()
""",
    "a smoke test": """
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    optimizer.zero_grad()
    F.cross_entropy(model(X), torch.zeros(128).long()).backward()
    optimizer.step()
""",
    "one class after the other": """
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for label in (0, 1):
    rows = (Y == label).nonzero()[:, 0]
    for step in range(80):
        optimizer.zero_grad()
        F.cross_entropy(model(X[rows]), Y[rows]).backward()
        optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_labels_of_one_class(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run, script):
    assert "DAT047" not in {each.code for each in run(HEAD + script).findings}
