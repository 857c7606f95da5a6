"""LOS038: mixup and CutMix with the wrong labels."""

import pytest

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
criterion, ce = nn.CrossEntropyLoss(), nn.CrossEntropyLoss()
"""
FAULTY = {
    "swapped shares": """
for idx in torch.randperm(500).split(50):
    xb, yb = X[idx], y[idx]
    lam = np.random.beta(0.4, 0.4)
    perm = torch.randperm(len(xb))
    mixed = lam * xb + (1 - lam) * xb[perm]
    out = net(mixed)
    loss = (1 - lam) * ce(out, yb) + lam * ce(out, yb[perm])  # <- LOS038
""",
    "a second permutation": """
for xb, yb in loader:
    lam = np.random.beta(0.4, 0.4)
    mixed = lam * xb + (1 - lam) * xb[torch.randperm(len(xb))]
    y2 = yb[torch.randperm(len(xb))]
    out = net(mixed)
    loss = lam * ce(out, yb) + (1 - lam) * ce(out, y2)  # <- LOS038
""",
    "the usual functions, with swapped arguments": """
def mixup_data(x, y, alpha=1.0):
    lam = np.random.beta(alpha, alpha) if alpha > 0 else 1
    index = torch.randperm(x.size(0)).to(x.device)
    mixed_x = lam * x + (1 - lam) * x[index, :]
    y_a, y_b = y, y[index]
    return mixed_x, y_a, y_b, lam
def mixup_criterion(criterion, pred, y_a, y_b, lam):
    return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)  # <- LOS038
for inputs, targets in loader:
    inputs, targets_a, targets_b, lam = mixup_data(inputs, targets)
    loss = mixup_criterion(criterion, net(inputs), targets_b, targets_a, lam)
""",
    "swapped in the criterion": """
def mix(images, labels):
    share = np.random.beta(0.2, 0.2)
    order = torch.randperm(len(images))
    return images * share + images[order] * (1 - share), labels[order], share
class Trainer:
    def step(self, images, labels):
        mixed, other, share = mix(images, labels)
        out = self.model(mixed)
        first, second = self.criterion(out, labels), self.criterion(out, other)
        return (1 - share) * first + share * second  # <- LOS038
""",
    "one-hot labels": """
y1h = F.one_hot(y, 4).float()
lam = torch.distributions.Beta(0.3, 0.3).sample()
perm = torch.randperm(len(x))
xm = lam * x + (1 - lam) * x[perm]
ym = lam * y1h[perm] + (1 - lam) * y1h  # <- LOS038
loss = F.cross_entropy(model(xm), ym)
""",
    "a shuffle for each": """
def shuffled(t):
    return t[torch.randperm(len(t))]
for x, y in loader:
    lam = np.random.beta(1, 1)
    x2 = shuffled(x)
    y2 = shuffled(y)
    out = model(lam * x + (1 - lam) * x2)
    loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y2)  # <- LOS038
""",
    "two values of lam": """
perm = torch.randperm(len(x))
lam = np.random.beta(1, 1)
mixed = lam * x + (1 - lam) * x[perm]
lam = np.random.beta(1, 1)
out = model(mixed)
loss = lam * criterion(out, y) + (1 - lam) * criterion(out, y[perm])  # <- LOS038
""",
    "a box": """
perm = torch.randperm(len(x))
x[:, :, y1:y2, x1:x2] = x[perm, :, y1:y2, x1:x2]
lam = 1 - (x2 - x1) * (y2 - y1) / (x.size(-1) * x.size(-2))
out = model(x)
loss = (1 - lam) * criterion(out, y) + lam * criterion(out, y[perm])  # <- LOS038
""",
}
FAULTY |= {
    "the labels are not mixed": """
for idx in torch.randperm(500).split(50):
    xb, yb = X[idx], y[idx]
    lam = np.random.beta(0.4, 0.4)
    perm = torch.randperm(len(xb))
    xb = lam * xb + (1 - lam) * xb[perm]  # <- LOS038
    loss = ce(net(xb), yb)
""",
    "both losses have the same labels": """
def step(x, y):
    lam = float(torch.distributions.Beta(0.2, 0.2).sample())
    order = torch.randperm(x.size(0))
    mixed = lam * x + (1 - lam) * x[order]  # <- LOS038
    logits = net(mixed)
    return lam * F.cross_entropy(logits, y) + (1 - lam) * F.cross_entropy(logits, y)
""",
}
CORRECT = {
    "an autoencoder of mixed inputs": """
for x, _ in loader:
    lam = np.random.beta(0.4, 0.4)
    perm = torch.randperm(len(x))
    mixed = lam * x + (1 - lam) * x[perm]
    loss = F.mse_loss(net(mixed), mixed)
""",
    "a helper that returns the permutation": """
def mix(x, alpha):
    lam = np.random.beta(alpha, alpha)
    perm = torch.randperm(len(x))
    return lam * x + (1 - lam) * x[perm], perm, lam
for x, y in loader:
    mixed, perm, lam = mix(x, 0.2)
    out = net(mixed)
    loss = lam * ce(out, y) + (1 - lam) * ce(out, y[perm])
""",
    "a little of another image as noise": """
for x, y in loader:
    noise = 0.1
    perm = torch.randperm(len(x))
    out = net((1 - noise) * x + noise * x[perm])
    loss = ce(out, y)
""",
    "the usual functions": """
def mixup_data(x, y, alpha=1.0):
    lam = np.random.beta(alpha, alpha) if alpha > 0 else 1
    index = torch.randperm(x.size(0)).to(x.device)
    mixed_x = lam * x + (1 - lam) * x[index, :]
    y_a, y_b = y, y[index]
    return mixed_x, y_a, y_b, lam
def mixup_criterion(criterion, pred, y_a, y_b, lam):
    return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)
for inputs, targets in loader:
    inputs, targets_a, targets_b, lam = mixup_data(inputs, targets)
    loss = mixup_criterion(criterion, net(inputs), targets_a, targets_b, lam)
""",
    "a symmetric share": """
lam = np.random.beta(0.4, 0.4)
lam = max(lam, 1 - lam)
perm = torch.randperm(len(x))
out = net(lam * x + (1 - lam) * x[perm])
loss = lam * ce(out, y) + (1 - lam) * ce(out, y[perm])
""",
    "the share of the permuted part in both": """
lam = np.random.beta(0.4, 0.4)
perm = torch.randperm(len(x))
out = net((1 - lam) * x + lam * x[perm])
loss = (1 - lam) * ce(out, y) + lam * ce(out, y[perm])
""",
    "mixed one-hot labels": """
y1h = F.one_hot(y, 4).float()
perm = torch.randperm(len(x))
xm = lam * x + (1 - lam) * x[perm]
ym = lam * y1h + (1 - lam) * y1h[perm]
loss = F.cross_entropy(model(xm), ym)
""",
    "a box": """
perm = torch.randperm(len(x))
x[:, :, y1:y2, x1:x2] = x[perm, :, y1:y2, x1:x2]
lam = 1 - (x2 - x1) * (y2 - y1) / (x.size(-1) * x.size(-2))
out = model(x)
loss = lam * criterion(out, y) + (1 - lam) * criterion(out, y[perm])
""",
    "a share that is replaced by its complement": """
perm = torch.randperm(len(x))
mixed = lam * x + (1 - lam) * x[perm]
lam = 1 - lam
out = model(mixed)
loss = (1 - lam) * criterion(out, y) + lam * criterion(out, y[perm])
""",
    "a shuffle of pairs": """
def shuffled(a, b):
    order = torch.randperm(len(a))
    return a[order], b[order]
for x, y in loader:
    lam = np.random.beta(1, 1)
    x2, y2 = shuffled(x, y)
    out = model(lam * x + (1 - lam) * x2)
    loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y2)
""",
    "a gradient penalty": """
eps = torch.rand(len(real), 1)
mixed = eps * real + (1 - eps) * fake
order = torch.randperm(len(real))
loss = (1 - eps) * criterion(d(mixed), y) + eps * criterion(d(real), y)
""",
    "two kinds of inputs": """
p1, p2 = torch.randperm(len(x)), torch.randperm(len(u))
xm = lam * x + (1 - lam) * x[p1]
um = lam * u + (1 - lam) * u[p2]
loss = lam * ce(model(xm), y) + (1 - lam) * ce(model(xm), y[p1])
loss = loss + (lam * F.mse_loss(model(um), guess) + (1 - lam) * F.mse_loss(model(um), guess[p2]))
""",
    "a moving average": """
teacher = m * teacher + (1 - m) * student
order = torch.randperm(len(x))
x, y = x[order], y[order]
loss = m * criterion(model(x), y) + (1 - m) * criterion(teacher_model(x), y)
""",
    "a reversed batch": """
lam = np.random.beta(1, 1)
out = model(lam * x + (1 - lam) * x.flip(0))
loss = lam * criterion(out, y) + (1 - lam) * criterion(out, y.flip(0))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_labels(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_right_labels(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS038")
