"""LOS062: log-probabilities of squashed actions without the correction."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional as F
"""

FAULTY = {
    "a method": """
class Policy(nn.Module):
    def sample(self, state):
        mu, log_std = self(state)
        normal = Normal(mu, log_std.exp())
        x = normal.rsample()
        y = x.tanh()
        logp = normal.log_prob(x).sum(-1, keepdim=True)  # <- LOS062
        return y * self.scale, logp
""",
    "in the loss": """
def actor_loss(actor, critic, s, alpha):
    dist = actor(s)
    z = dist.rsample()
    a = torch.tanh(z)
    lp = dist.log_prob(z).sum(1)  # <- LOS062
    loss = (alpha * lp - critic(s, a)).mean()
    return loss
""",
}

CORRECT = {
    "corrected": """
def sample(dist):
    x = dist.rsample()
    y = torch.tanh(x)
    logp = dist.log_prob(x)
    logp -= torch.log(1 - y.pow(2) + 1e-6)
    return y, logp.sum(1)
""",
    "corrected by softplus": """
def sample(dist):
    u = dist.rsample()
    logp = dist.log_prob(u).sum(-1) - (2 * (0.6931 - u - F.softplus(-2 * u))).sum(1)
    return torch.tanh(u), logp
""",
    "without a gradient": """
def sample(dist):
    u = dist.sample()
    return torch.tanh(u), dist.log_prob(u).sum(-1)
""",
    "not squashed": """
def sample(dist):
    u = dist.rsample()
    return u, dist.log_prob(u).sum(-1)
""",
    "another value": """
def sample(dist, h):
    u = dist.rsample()
    return torch.tanh(h) * u, dist.log_prob(u).sum(-1)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_missing_corrections(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_samples(lint_is_clean, script):
    lint_is_clean(HEAD + script)
