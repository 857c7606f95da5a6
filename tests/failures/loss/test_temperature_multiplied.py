"""LOS023: logits that are multiplied by a temperature below 1."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""

FAULTY = {
    "a default": """
def info_nce(za, zb, temperature=0.07):
    logits = za @ zb.t() * temperature  # <- LOS023
    labels = torch.arange(len(za))
    return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels))
""",
    "an attribute": """
class Contrast(nn.Module):
    def __init__(self, tau=0.1):
        super().__init__()
        self.tau = tau
        self.loss = nn.CrossEntropyLoss()
    def forward(self, a, b):
        return self.loss(self.tau * torch.mm(a, b.t()), torch.arange(len(a)))  # <- LOS023
""",
    "in place, with a method": """
TEMPERATURE = 3
def attend(query, keys, temperature: float = 0.5):
    scores = query @ keys.transpose(1, 2)
    scores *= temperature  # <- LOS023
    return scores.softmax(-1)
""",
    "an exponential": """
class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = 0.2
    def forward(self, z):
        similarities = torch.exp(z @ z.T * self.temperature)  # <- LOS023
        return -(similarities.diagonal() / similarities.sum(1)).log().mean()
""",
}

CORRECT = {
    "divided": """
def info_nce(za, zb, temperature=0.07):
    logits = za @ zb.t() / temperature
    return F.cross_entropy(logits, torch.arange(len(za)))
""",
    "distillation": """
def distill(student, teacher, temperature=0.5):
    p = F.log_softmax(student / temperature, 1)
    q = F.softmax(teacher / temperature, 1)
    loss = F.kl_div(p, q, reduction="batchmean") * temperature
    return loss * temperature
""",
    "a scale": """
def logits(za, zb, temperature=14.3):
    return F.cross_entropy(za @ zb.t() * temperature, torch.arange(len(za)))
""",
    "learned, as an exponent": """
class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.66))
    def forward(self, a, b):
        return F.cross_entropy(a @ b.t() * self.temperature.exp(), torch.arange(len(a)))
""",
    "a soft update": """
def update(target, source, tau=0.005):
    for t, s in zip(target.parameters(), source.parameters()):
        t.data.copy_(tau * s.data + (1 - tau) * t.data)
""",
    "inverse": """
def info_nce(za, zb, temperature=0.07):
    return F.cross_entropy(za @ zb.t() * (1 / temperature), torch.arange(len(za)))
""",
    "the supervised contrastive loss": """
def supcon(logits, mask, temperature=0.07, base_temperature=0.07):
    log_prob = logits - torch.log(torch.exp(logits).sum(1, keepdim=True))
    mean_log_prob = (mask * log_prob).sum(1) / mask.sum(1)
    return (-(temperature / base_temperature) * mean_log_prob).mean()
""",
    "parameters without names": """
def distil(student, teacher, temperature=2.0, /, scale=1.0):
    return F.cross_entropy(student * temperature, teacher) * scale


def copy(a, b=1, c=2, /):
    return a
""",
    "a decay": """
def weights(steps, tau=0.3):
    return torch.exp(-steps / tau) * tau
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_marked_line(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
