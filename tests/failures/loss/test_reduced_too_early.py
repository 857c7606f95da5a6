"""LOS044: a loss that is reduced before the mask, the weights or the margin is applied."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
criterion = nn.CrossEntropyLoss()
each = nn.CrossEntropyLoss(reduction="none")
"""

FAULTY = {
    "sample weights": """
def step(model, batch):
    inputs, targets, weights = batch
    loss = F.mse_loss(model(inputs), targets)  # <- LOS044
    return (loss * weights).mean()
""",
    "a criterion of a class": """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.criterion = nn.L1Loss()

    def step(self, x, y, mask):
        loss = mask.unsqueeze(1) * self.criterion(self.model(x), y)  # <- LOS044
        loss = loss.sum() / mask.sum()
        loss.backward()
""",
    "a comparison": """
def loss_of(logits, tokens):
    valid_tokens = tokens != 0
    loss = criterion(logits.transpose(1, 2), tokens)  # <- LOS044
    return torch.sum(loss * valid_tokens.float()) / valid_tokens.sum()
""",
    "the divergence of each step": """
def loss_of(mean, log_var, mask):
    kl = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp()) * mask  # <- LOS044
    return kl.sum() / mask.sum()
""",
    "a triplet margin": """
def loss_of(anchor, positive, negative, margin=1.0):
    near = (anchor - positive).pow(2).sum()  # <- LOS044
    far = (anchor - negative).pow(2).sum()
    return F.relu(margin + near - far).mean()
""",
    "a log-sigmoid": """
def loss_of(users, liked, other):
    score = (users * (liked - other)).sum()  # <- LOS044
    return -F.logsigmoid(score).mean()
""",
    "a limit by a method": """
def loss_of(scores, labels):
    return (1 - (scores * labels).sum()).clamp(min=0).mean()  # <- LOS044
""",
}
FAULTY["a focal factor of a criterion"] = """
class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma
        self.ce = nn.CrossEntropyLoss()

    def forward(self, input, target):
        logp = self.ce(input, target)  # <- LOS044
        p = torch.exp(-logp)
        loss = (1 - p) ** self.gamma * logp
        return loss.mean()
"""
FAULTY["a focal factor of a function"] = """
def focal_loss(logits, y, alpha=0.25, gamma=2):
    log_pt = -F.binary_cross_entropy_with_logits(logits, y)  # <- LOS044
    return -alpha * torch.pow(1 - log_pt.exp(), gamma) * log_pt
"""
FAULTY["a focal factor of a mean"] = """
def focal_loss(logits, y, gamma=2):
    ce = F.cross_entropy(logits, y, reduction="none").mean()  # <- LOS044
    focus = 1 - torch.exp(-ce)
    return focus.pow(gamma) * ce
"""
FAULTY["a weight of each sample"] = """
def step(model, x, y, sample_weight):
    loss = F.cross_entropy(model(x), y) * sample_weight  # <- LOS044
    return loss.mean()
"""
FAULTY["weights of the classes, by the label"] = """
def loss_of(out, y, class_weight):
    loss = F.cross_entropy(out, y) * class_weight[y]  # <- LOS044
    return loss.mean()
"""
FAULTY["an attribute with the name of a function"] = """
class Learner:
    def __init__(self):
        self.huber_loss = nn.SmoothL1Loss()
    def step(self, q, target, weights):
        loss = self.huber_loss(q, target)  # <- LOS044
        return torch.mean(weights * loss)
"""
FAULTY |= {
    "a comparison by a method": """
def loss_function(real, pred):
    mask = real.ge(1).float().to(device)
    value = criterion(pred, real) * mask  # <- LOS044
    return torch.mean(value)
""",
    "a comparison by a function": """
def loss_function(real, pred):
    valid = torch.ne(real, 0)
    value = F.cross_entropy(pred, real)  # <- LOS044
    return (value * valid).sum() / valid.sum()
""",
    "a negation": """
def loss_function(real, pred):
    keep = torch.logical_not(real.eq(0)).type(torch.float32)  # a mask
    value = criterion(pred, real) * keep  # <- LOS044
    return value.mean()
""",
}

CORRECT = {
    "a comparison by a method": """
def loss_function(real, pred):
    mask = real.ge(1).float()
    return (each(pred, real) * mask).sum() / mask.sum()
""",
    "a count": """
def loss_function(real, pred):
    count = real.ne(0).sum()
    return (criterion(pred, real) * count).sum()
""",
    "a focal factor of each sample": """
class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0, reduction="mean"):
        super().__init__()
        self.gamma, self.reduction = gamma, reduction
        self.ce = nn.CrossEntropyLoss(reduction="none")
        self.other = nn.CrossEntropyLoss(reduction=reduction)

    def forward(self, input, target):
        logp = self.ce(input, target)
        other = self.other(input, target)
        return ((1 - torch.exp(-logp)) ** self.gamma * logp).mean() + (1 - torch.exp(-other)) ** self.gamma * other
""",
    "a focal factor of single samples": """
def focal_loss(logits, y, gamma=2):
    total = 0
    for i in range(len(y)):
        ce = F.cross_entropy(logits[i:i + 1], y[i:i + 1])
        total = total + (1 - torch.exp(-ce)) ** gamma * ce
    return total / len(y)
""",
    "a focal factor of a softmax": """
def focal_loss(logits, y, gamma=2):
    p = logits.softmax(1).gather(1, y[:, None]).squeeze(1)
    ce = F.cross_entropy(logits, y)
    return ((1 - p) ** gamma * -p.log()).mean() + ce
""",
    "a learned uncertainty": """
def loss_of(out, y, log_var, focal_weight):
    mse = F.mse_loss(out, y)
    perplexity = torch.exp(mse)
    return torch.exp(-log_var) * mse + log_var + (1 - focal_weight) ** 2 * perplexity
""",
    "weights in the other branch": """
def loss_of(log_prob, weights=None):
    loss = -log_prob
    if weights is None:
        loss = loss.mean()
    else:
        loss = (loss * weights).mean()
    return loss
""",
    "an attribute with the name of a function": """
class Learner:
    def __init__(self):
        self.huber_loss = nn.SmoothL1Loss(reduction="none")
    def step(self, q, target, weights):
        losses = self.huber_loss(q, target)
        return torch.mean(weights * losses)
""",
    "a method with the name of a function": """
class Learner:
    def mse_loss(self, q, target):
        return (q - target) ** 2
    def step(self, q, target, weights):
        losses = self.mse_loss(q, target)
        return torch.mean(weights * losses)
""",
    "no reduction": """
def step(logits, targets, mask, weights):
    loss = each(logits, targets)
    squares = F.mse_loss(logits, targets, reduction="none")
    return (loss * mask).sum() / mask.sum() + (loss * weights).mean() + (squares * mask).mean()
""",
    "a dimension": """
def step(users, liked, other, mask):
    score = (users * (liked - other)).sum(1)
    total = torch.sum(users * liked, dim=-1)
    return -F.logsigmoid(score).mean() + (total * mask).sum() + F.relu(1 - total).mean()
""",
    "the weight of a term, several processes": """
def step(out, y, weight, loss_weights):
    loss = weight * criterion(out, y) + loss_weights["aux"] * criterion(out, y)
    return loss.mean()
""",
    "a share of the mask": """
def step(out, y, mask):
    loss = criterion(out[mask], y[mask]) * mask.sum() / mask.numel()
    return loss.mean()
""",
    "one sample at a time": """
def step(users, pairs):
    loss = 0
    for u, liked, other in pairs:
        loss = loss - F.logsigmoid((u * (liked - other)).sum())
    return loss / len(pairs)
""",
    "free bits": """
def step(mean, log_var):
    kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(1)
    return torch.clamp(kl.mean(), min=0.5)
""",
    "masked before the reduction": """
def step(out, y, mask):
    loss = ((out - y) ** 2 * mask).sum() / mask.sum()
    return loss.mean()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_values_reduced_too_early(lint_reports, script):
    lint_reports(HEAD + script, fixes=False)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_values_of_each_sample(lint_is_clean, script):
    lint_is_clean(HEAD + script)


ELEMENTS = """
{imported}
def judge(truth, predicted, weights):
    losses = kl_div(truth, predicted){mark}
    return (losses * sample_weights[:, None]).sum() / sample_weights.sum()
"""


def test_lint_knows_functions_of_other_libraries_that_do_not_reduce(lint_is_clean, lint_reports):
    lint_is_clean(HEAD + ELEMENTS.format(imported="from scipy.special import kl_div", mark=""))
    lint_is_clean(HEAD + ELEMENTS.format(imported="import scipy", mark="").replace("kl_div(", "scipy.special.kl_div("))
    imported = "from torch.nn.functional import kl_div"
    lint_reports(HEAD + ELEMENTS.format(imported=imported, mark="  # <- LOS044"))
