"""LOS035: focal losses that weigh the easy samples most."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
FAULTY = {
    "a class": """
class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma
    def forward(self, logits, y):
        ce = F.cross_entropy(logits, y, reduction="none")
        pt = torch.exp(-ce)
        return (pt**self.gamma * ce).mean()  # <- LOS035
""",
    "a weight in a variable": """
def focal(logits, target, alpha=0.25, gamma=2):
    bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_t = (-bce).exp()
    weight = p_t.pow(gamma)  # <- LOS035
    alpha_t = alpha * target + (1 - alpha) * (1 - target)
    loss = alpha_t * weight * bce
    return loss.mean()
""",
    "gathered probabilities": """
def focal_loss(logits, y, gamma=2.0):
    probs = F.softmax(logits, dim=1)
    p = probs.gather(1, y.unsqueeze(1)).squeeze(1)
    return -(p**gamma * torch.log(p + 1e-8)).mean()  # <- LOS035
""",
    "gathered log-probabilities": """
def loss_of(logits, y, focus):
    logp = F.log_softmax(logits, 1).gather(1, y[:, None]).squeeze(1)
    pt = logp.exp()
    return -(torch.pow(pt, focus) * logp).mean()  # <- LOS035
""",
    "a selected probability": """
class BinaryFocal(nn.Module):
    def __init__(self, gamma):
        super().__init__()
        self.g = gamma
        self.bce = nn.BCEWithLogitsLoss(reduction="none")
    def forward(self, x, y):
        p = torch.sigmoid(x)
        pt = p * y + (1 - p) * (1 - y)
        return (self.bce(x, y) * pt**2).mean()  # <- LOS035
class FocalHead(nn.Module):
    def loss(self, x, y):
        p = torch.sigmoid(x)
        pt = torch.where(y == 1, p, 1 - p)
        loss = F.binary_cross_entropy_with_logits(x, y, reduction="none")
        loss *= pt**2  # <- LOS035
        return loss.mean()
""",
    "the exponential of the loss": """
def focal_loss(logits, y, gamma=2.0):
    ce = F.cross_entropy(logits, y, reduction="none")
    pt = torch.exp(ce)
    return ((1 - pt) ** gamma * ce).mean()  # <- LOS035
""",
    "the exponential of a negative log-probability": """
def focal_loss(logits, y, gamma=2.0):
    logpt = F.log_softmax(logits, dim=-1)[torch.arange(len(y)), y]
    pt = torch.exp(-logpt)
    return (-((1 - pt) ** gamma) * logpt).mean()  # <- LOS035
""",
    "one-hot targets": """
def focal_loss(probs, onehot, gamma=2.0):
    return -(onehot * probs**gamma * torch.log(probs.clamp(min=1e-6))).sum(1).mean()  # <- LOS035
""",
    "the complement of the exponential in a variable": """
def focal_loss(logits, y, gamma=2.0):
    ce = F.cross_entropy(logits, y, reduction="none")
    modulating = 1 - torch.exp(ce)
    return (modulating.pow(gamma) * ce).mean()  # <- LOS035
""",
    "two functions": """
def target_probability(logits, y):
    return logits.softmax(1)[torch.arange(len(y)), y]
def step(x, y, gamma):
    out = model(x)
    pt = target_probability(out, y)
    (pt**gamma * criterion_ce(out, y)).mean().backward()  # <- LOS035
""",
}
CORRECT = {
    "one minus the probability": """
class FocalLoss(nn.Module):
    def forward(self, logits, y):
        ce = F.cross_entropy(logits, y, reduction="none")
        pt = torch.exp(-ce)
        return ((1 - pt) ** self.gamma * ce).mean()
""",
    "named like the probability": """
def focal_loss(pred, target, gamma=2.0, alpha=0.25):
    p = pred.sigmoid()
    pt = (1 - p) * target + p * (1 - target)
    focal_weight = (alpha * target + (1 - alpha) * (1 - target)) * pt.pow(gamma)
    return F.binary_cross_entropy_with_logits(pred, target, reduction="none") * focal_weight
""",
    "both terms": """
def focal_loss(p, y, gamma=2.0, alpha=0.25):
    loss = -alpha * (1 - p) ** gamma * y * torch.log(p) - (1 - alpha) * p**gamma * (1 - y) * torch.log(1 - p)
    return loss.mean()
""",
    "heat maps": """
def focal_loss(pred, gt):
    pos, neg = gt.eq(1).float(), gt.lt(1).float()
    neg_weights = torch.pow(1 - gt, 4)
    pos_loss = torch.log(pred) * torch.pow(1 - pred, 2) * pos
    neg_loss = torch.log(1 - pred) * torch.pow(pred, 2) * neg_weights * neg
    return -(pos_loss + neg_loss).sum()
""",
    "the complement in a variable": """
def focal_loss(x, y, gamma=2):
    logp = -F.cross_entropy(x, y, reduction="none")
    p = torch.exp(logp)
    w = 1 - p
    return (-(w**gamma) * logp).mean()
""",
    "a logarithm of the complement": """
def focal_loss(x, y, gamma=2):
    invprobs = F.logsigmoid(-x * (y * 2 - 1))
    loss = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    return ((invprobs * gamma).exp() * loss).mean()
""",
    "alpha weights": """
def focal_loss(x, y, alpha, gamma=2):
    ce = F.cross_entropy(x, y, reduction="none")
    pt = torch.exp(-ce)
    return (alpha[y] * (1 - pt) ** gamma * ce).mean()
""",
    "a poly loss": """
def poly_focal(x, y, epsilon=1.0, gamma=2):
    ce = F.cross_entropy(x, y, reduction="none")
    pt = torch.exp(-ce)
    return ((1 - pt) ** gamma * ce + epsilon * (1 - pt) ** (gamma + 1)).mean()
""",
    "discounts": """
def returns(rewards, gamma):
    p = torch.exp(-rewards)
    return (gamma ** torch.arange(len(rewards)) * rewards).sum() + (rewards**gamma).mean()
""",
    "easy samples on purpose": """
def anti_focal_for_noisy_labels(x, y, gamma=2):
    ce = F.cross_entropy(x, y, reduction="none")
    return (torch.exp(-ce) ** gamma * ce).mean()
""",
    "the probability of errors": """
def focal_loss(x, y, gamma=2):
    ce = F.cross_entropy(x, y, reduction="none")
    p_wrong = 1 - torch.exp(-ce)
    return (p_wrong**gamma * ce).mean()
""",
    "a distance of target and prediction": """
def quality_focal(x, y, gamma=2):
    scale = (x.sigmoid() - y).abs()
    return (F.binary_cross_entropy_with_logits(x, y, reduction="none") * scale.pow(gamma)).mean()
""",
    "a negative term with its own name": """
def focal_loss(x, y, gamma=2):
    p = x.sigmoid()
    log_not = F.logsigmoid(-x)
    return -((1 - p) ** gamma * y * F.logsigmoid(x) + p**gamma * (1 - y) * log_not).mean()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_factor(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_right_factors(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS035")
