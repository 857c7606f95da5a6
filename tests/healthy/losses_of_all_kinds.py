"""One small network trained with many losses, each with its expected input: log-probabilities, probabilities or logits."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
x = torch.randn(192, 6)
classes = (x @ torch.randn(6, 3)).argmax(1)
binary = (x[:, 0] > 0).float()
value = x[:, 1] * 2 + x[:, 2]
multi = (x[:, :3] > 0).float()
soft = F.softmax(x[:, :3] * 2, dim=1)
lam = torch.distributions.Beta(0.4, 0.4)


def net(outputs):
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))


def mixup(m):
    a, perm = lam.sample(), torch.randperm(len(x))
    out = m(a * x + (1 - a) * x[perm])
    return a * F.cross_entropy(out, classes) + (1 - a) * F.cross_entropy(out, classes[perm])


def quantiles(m, qs=(0.1, 0.5, 0.9)):
    error = value.unsqueeze(1) - m(x)
    q = torch.tensor(qs)
    return torch.max(q * error, (q - 1) * error).sum(1).mean()


def focal(m, gamma=2.0):
    ce = F.cross_entropy(m(x), classes, reduction="none")
    return ((1 - (-ce).exp()) ** gamma * ce).mean()


def gaussian(m):
    mu, log_var = m(x).unbind(1)
    return F.gaussian_nll_loss(mu, value, log_var.exp())


WEIGHTS = 1.0 / torch.bincount(classes, minlength=3).float().clamp(min=1)
LOSSES = {
    "nll": (3, lambda m: nn.NLLLoss()(F.log_softmax(m(x), dim=1), classes)),
    "nll_log_of_softmax": (3, lambda m: F.nll_loss(torch.log(F.softmax(m(x), 1) + 1e-9), classes)),
    "smoothed": (3, lambda m: nn.CrossEntropyLoss(label_smoothing=0.1)(m(x), classes)),
    "weighted": (3, lambda m: nn.CrossEntropyLoss(weight=WEIGHTS)(m(x), classes)),
    "soft_targets": (3, lambda m: F.cross_entropy(m(x), soft)),
    "kl_batchmean": (3, lambda m: F.kl_div(F.log_softmax(m(x), 1), soft, reduction="batchmean")),
    "kl_log_target": (
        3,
        lambda m: F.kl_div(F.log_softmax(m(x), 1), soft.log(), log_target=True, reduction="batchmean"),
    ),
    "mixup": (3, mixup),
    "focal": (3, focal),
    "bce_sigmoid": (1, lambda m: nn.BCELoss()(torch.sigmoid(m(x)).squeeze(1), binary)),
    "bce_logits": (1, lambda m: nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0))(m(x).view(-1), binary)),
    "multi_label": (3, lambda m: F.multilabel_soft_margin_loss(m(x), multi)),
    "huber": (1, lambda m: nn.HuberLoss(delta=0.5)(m(x)[:, 0], value)),
    "quantile": (3, quantiles),
    "hinge": (3, lambda m: F.multi_margin_loss(m(x), classes)),
    "gaussian": (2, gaussian),
    "poisson": (1, lambda m: F.poisson_nll_loss(m(x).squeeze(1), multi.sum(1))),
    "hard_examples": (3, lambda m: F.cross_entropy(m(x), classes, reduction="none").topk(48).values.mean()),
}
for name, (outputs, loss_fn) in LOSSES.items():
    torch.manual_seed(1)
    model = net(outputs)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(8):
        optimizer.zero_grad()
        loss = loss_fn(model)
        loss.backward()
        optimizer.step()
    print(name, loss.item())
