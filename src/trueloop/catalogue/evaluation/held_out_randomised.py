"""Held-out samples are augmented at random, as if they were trained on.

Symptom
    The validation loss is noisy, and worse than it would be on the data as they are; the best epoch is the lucky one.

Why nothing raises
    A dataset that augments does so for whoever reads it. One dataset that is split after it was built carries its
    random transforms into both parts.

Look-alikes
    Test-time augmentation averages over several random views, a denoising model is measured on noise that is drawn
    anew, masked language modelling masks other tokens in each sweep, contrastive learning wants two random views of
    each sample, a sampler of negatives draws new ones, a language model is measured on random pieces of a long text.
    All of these are on purpose, and give other inputs for the same index in every sweep, just as this mistake does;
    also where one dataset was split into both parts. What tells them apart is what the author wants, and nothing that
    a program does while it runs. So no running program is accused: it shows in the text only, as one dataset with
    the random transforms of a training set behind both loaders.

Fix
    Build two datasets over the same files, one with the random transforms and one without, and split the indices.

References
    Transforms of torchvision, https://docs.pytorch.org/vision/stable/transforms.html
    torch.utils.data.random_split, https://docs.pytorch.org/docs/stable/data.html
    Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2018, https://arxiv.org/abs/1810.04805
    Vincent et al., "Extracting and Composing Robust Features with Denoising Autoencoders", ICML 2008
"""

from __future__ import annotations

from trueloop.ground.failure import Failure, Severity

FAILURE = Failure(
    code="EVL005",
    title="Held-out data are randomised",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return x + 0.3 * torch.randn_like(x), self.y[index]


x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(Noisy(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(Noisy(x[128:], y[128:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, x, y, augment):
        self.x, self.y, self.augment = x, y, augment

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        if self.augment:
            x = x + 0.3 * torch.randn_like(x)
        return x, self.y[index]


x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(Noisy(x[:128], y[:128], augment=True), batch_size=16, shuffle=True)
held_out = DataLoader(Noisy(x[128:], y[128:], augment=False), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
""",
    fix="Read held-out data through a dataset without random transforms.",
)
