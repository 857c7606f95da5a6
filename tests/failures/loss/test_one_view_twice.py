"""LOS068: both embeddings of a pair come from one view, and correct programs that look like it."""

from __future__ import annotations

import pytest

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
"""

FAULTY = {
    "keys of a data set": """
class Pairs(torch.utils.data.Dataset):
    def __getitem__(self, index):
        image = self.images[index]
        return {"aug1": self.augment(image), "aug2": self.augment(image)}
class Runner:
    def handle_batch(self, batch):
        emb1 = self.model(batch["aug1"])
        emb2 = self.model(batch["aug1"])  # <- LOS068
        loss = self.criterion(emb1, emb2)
        loss.backward()
""",
    "parameters of forward": """
class SimSiam(nn.Module):
    def forward(self, x1, x2):
        z1 = self.projector(self.encoder(x1))
        z2 = self.projector(self.encoder(x1))  # <- LOS068
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return -(F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean()) / 2
""",
    "an average of the network, in BYOL": """
def train(online, target_net, predictor, loader, optimizer, device):
    for (view_a, view_b), _ in loader:
        view_a, view_b = view_a.to(device), view_b.to(device)
        with torch.no_grad():
            goal = target_net(view_a)
        guess = predictor(online(view_a))  # <- LOS068
        loss = 2 - 2 * F.cosine_similarity(guess, goal).mean()
        loss.backward()
def step(online, online_ema, pair):
    weak, strong = pair
    first = online(weak)
    second = online_ema(weak)  # <- LOS068
    (first - second).pow(2).mean().backward()
""",
    "one assignment": """
def loss_of(net, criterion, batch):
    (xi, xj), y = batch
    zi, zj = net(xi), net(xi)  # <- LOS068
    return criterion(zi, zj)
class Net(nn.Module):
    pass
""",
    "one expression": """
def step(net, contrast, view1, view2):
    loss = contrast(net(view1), net(view1))
    loss.backward()
def other(net, contrast, view1, view2):
    contrast(net(view1), net(view1)).backward()  # <- LOS068
""",
    "joined views": """
for images, _ in loader:
    img_1, img_2 = images
    z = net(torch.cat([img_1, img_1], dim=0))  # <- LOS068
    loss = nt_xent(z)
    loss.backward()
""",
    "items of a list": """
def train(net, loader, vicreg):
    for views, _ in loader:
        first = net(views[0])
        other = net(views[0])  # <- LOS068
        vicreg(first, other).backward()
""",
    "moved to the device": """
for x1, x2 in loader:
    x1 = x1.cuda()
    x2 = x1.cuda()  # <- LOS068
    info_nce(net(x1), net(x2)).backward()
""",
    "augmented once": """
def step(net, augment, info_nce, x):
    view = augment(x)
    z1 = net(view)
    z2 = net(view)  # <- LOS068
    info_nce(z1, z2).backward()
""",
    "a copy of the view": """
class BarlowTwinsLoss(nn.Module):
    def forward(self, a, b):
        return ((a.T @ b - 1) ** 2).mean()
criterion = BarlowTwinsLoss()
def step(net, random_crop, x):
    v1 = random_crop(x)
    v2 = v1.clone()
    h1 = net(v1)
    h2 = net(v2)  # <- LOS068
    criterion(h1, h2).backward()
""",
    "two names of one view": """
def step(net, transform, nt_xent, x):
    view_1 = view_2 = transform(x)  # <- LOS068
    nt_xent(net(view_1), net(view_2)).backward()
def again(net, transform, nt_xent, x):
    view_1, view_2 = [transform(x)] * 2  # <- LOS068
    nt_xent(net(view_1), net(view_2)).backward()
""",
    "a pair with one sample": """
class Pairs(torch.utils.data.Dataset):
    def __getitem__(self, index):
        view = self.transform(self.images[index])
        return view, view  # <- LOS068
def train(net, loader, info_nce):
    for v1, v2 in loader:
        info_nce(net(v1), net(v2)).backward()
""",
}

CORRECT = {
    "sizes of layers": """
class Layer(nn.Module):
    def __init__(self, c, heads, _b=None):
        super().__init__()
        self.q = nn.Linear(c, c, bias=False)
        self.pair = c, c
""",
    "sizes whose counterpart is not read": """
class Block(nn.Module):
    def __init__(self, width1, width2):
        super().__init__()
        self.first = nn.Linear(width1, width1)
""",
    "a ratio and an unread variable": """
def resize(r, shape):
    _a, _b = shape
    ratio = r, r
    return ratio
""",
    "the diagonal of a matrix": """
def pairs(labels, a1_idx, p_idx, a2_idx, n_idx):
    positive, negative = torch.zeros(8, 8), torch.zeros(8, 8)
    positive[a1_idx, p_idx] = 1
    positive[a1_idx, a1_idx] = 1
    negative[a2_idx, n_idx] = 1
    return positive.sum(1), negative
""",
    "the diagonal of a table": """
def diagonal(table, i1, i2):
    weights = torch.ones(4)
    return table[i1, i1] * weights
""",
    "an index is read in a target": """
def scatter(net, idx1, idx2, x):
    rows = torch.stack([idx1, idx1])
    out = torch.zeros(4, 4)
    out[rows] = net(x)
    out[idx2, 0] = 1
    return out
""",
    "twin critics": """
def update(q1, q2, actor, batch):
    s, r, s_prime = batch
    a = actor(s_prime)
    value = torch.min(q1(s_prime, a), q2(s_prime, a))
    (value - r).pow(2).mean().backward()
""",
    "two networks of one image": """
def step(net1, net2, loss, x1, x2):
    z1, z2 = net1(x1), net2(x1)
    loss(z1, z2).backward()
""",
    "both views": """
def step(net, criterion, x1, x2):
    z1, z2 = net(x1), net(x2)
    criterion(z1, z2).backward()
""",
    "SimCSE": """
def step(bert, contrastive, batch):
    x, y = batch
    z1 = bert(x)
    z2 = bert(x)
    contrastive(z1, z2).backward()
dropout = nn.Dropout(0.1)
""",
    "R-Drop": """
def step(net, batch):
    logits1 = net(batch["ids"])
    logits2 = net(batch["ids"])
    F.kl_div(logits1.log_softmax(1), logits2.softmax(1)).backward()
def make(text):
    return {"ids": text, "ids_length": len(text)}
""",
    "R-Drop after an augmentation": """
def step(net, augment, x):
    view = augment(x)
    logits1 = net(view)
    logits2 = net(view)
    (logits1 - logits2).pow(2).mean().backward()
""",
    "an autoencoder": """
class Images(torch.utils.data.Dataset):
    def __getitem__(self, index):
        view = self.transform(self.images[index])
        return view, view
def step(net, x1, x2):
    F.mse_loss(net(x1), x1).backward()
""",
    "two layers read one input": """
class Net(nn.Module):
    def forward(self, x1, x2):
        gate = self.gate(x1)
        value = self.value(x1)
        return gate * value
""",
    "the symmetric loss of BYOL": """
def step(online, target, predictor, v1, v2):
    p1, p2 = predictor(online(v1)), predictor(online(v2))
    with torch.no_grad():
        t1, t2 = target(v1), target(v2)
    (F.mse_loss(p1, t2) + F.mse_loss(p2, t1)).backward()
""",
    "an unused view without a pair": """
def step(net, view1, view2, y):
    features = net(view1)
    F.cross_entropy(features, y).backward()
    with torch.no_grad():
        accuracy = (net(view1).argmax(1) == y).float().mean()
    return accuracy
""",
    "a label that a self-supervised program does not read": """
def step(net, augment, nt_xent, loader):
    for x, y in loader:
        z1, z2 = net(augment(x)), net(augment(x))
        nt_xent(z1, z2).backward()
""",
    "twice through a generator": """
def step(net, disc, x1, x2, augment):
    fake = net(x1)
    loss_d = disc(fake.detach())
    loss_g = disc(fake)
    (loss_d - loss_g).mean().backward()
""",
    "a stop gradient": """
def step(net, criterion, views):
    z = [net(view) for view in views]
    criterion(z[0], z[1].detach()).backward()
    criterion(z[1], z[0].detach()).backward()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_it(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS068")
