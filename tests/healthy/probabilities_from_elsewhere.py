"""Losses over probabilities that no softmax or sigmoid computed: noisy-or, exp of a distance, mixtures, normalised counts."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(200, 4)
hit = (x[:, 0].abs() > 0.8).float()
label = (x[:, :3]).argmax(1)


def noisy_or(net):
    p = torch.sigmoid(net(x))
    return F.binary_cross_entropy((1 - (1 - p).prod(1)).clamp(1e-6, 1 - 1e-6), hit)


def distance(net):
    return F.binary_cross_entropy(torch.exp(-net(x).pow(2).sum(1)).clamp(1e-6, 1 - 1e-6), hit)


def mixture_of_softmaxes(net):
    a, b, gate = net(x).split([3, 3, 1], dim=1)
    g = torch.sigmoid(gate)
    return F.nll_loss((g * F.softmax(a, 1) + (1 - g) * F.softmax(b, 1)).log(), label)


def logsumexp_by_hand(net):
    logits = net(x)
    return F.nll_loss(logits - logits.logsumexp(1, keepdim=True), label)


def normalised_positive(net):
    p = F.softplus(net(x)) + 1e-4
    return F.nll_loss((p / p.sum(1, keepdim=True)).log(), label)


def log_softmax_then_cross_entropy(net):
    return nn.CrossEntropyLoss()(nn.LogSoftmax(dim=1)(net(x)), label)  # the same number: log-softmax is idempotent


def two_class_softmax_as_bce(net):
    return F.binary_cross_entropy(F.softmax(net(x), dim=1)[:, 1], hit)


def attention_then_logits(net):
    scores = F.softmax(net(x), dim=1)
    return F.cross_entropy((scores.unsqueeze(2) * x[:, :3].unsqueeze(1)).sum(1) * net.temperature, label)


CASES = [(noisy_or, 3), (distance, 2), (mixture_of_softmaxes, 7), (logsumexp_by_hand, 3), (normalised_positive, 3),
         (log_softmax_then_cross_entropy, 3), (two_class_softmax_as_bce, 2), (attention_then_logits, 3)]  # fmt: skip
for loss_fn, outputs in CASES:
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, outputs))
    net.temperature = nn.Parameter(torch.ones(())) if loss_fn is attention_then_logits else 1.0
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(10):
        loss = loss_fn(net)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss_fn.__name__, loss.item())
