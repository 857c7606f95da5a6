"""LOS066: log_std where a deviation is needed."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.distributions import Independent, LogNormal, Normal

"""

FAULTY = {
    "a policy with a parameter": """
class Policy(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.mu = nn.Linear(obs, act)
        self.log_std = nn.Parameter(torch.full((act,), 0.5))

    def forward(self, x):
        return Normal(self.mu(x), self.log_std)  # <- LOS066
""",
    "a layer for the logarithm": """
class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.log_sigma = nn.Linear(4, 2), nn.Linear(4, 2)

    def dist(self, h):
        scale = self.log_sigma(h)
        return torch.distributions.Normal(loc=self.mean(h), scale=scale)  # <- LOS066
""",
    "clamped": """
def act(net, states):
    mu, logstd = net(states).chunk(2, -1)
    logstd = torch.clamp(logstd, -5, 2)
    return Normal(mu, logstd).sample()  # <- LOS066
""",
    "the noise of a latent": """
def sample(mean, logvar):
    eps = torch.randn_like(mean)
    return mean + eps * logvar  # <- LOS066
""",
    "torch.normal": """
def draw(mu, log_scale):
    return torch.normal(mu, log_scale.expand_as(mu))  # <- LOS066
""",
    "an independent distribution": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, x):
        out = self.head(x)
        mu, ln_std = out[:, :2], out[:, 2:]
        return Independent(Normal(mu, ln_std), 1)  # <- LOS066
""",
}
CORRECT = {
    "exponential": """
class Policy(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.mu = nn.Linear(obs, act)
        self.log_std = nn.Parameter(torch.zeros(act))

    def forward(self, x):
        mu = self.mu(x)
        std = self.log_std.exp().expand_as(mu)
        return Normal(mu, std)

    def other(self, x):
        return Normal(self.mu(x), torch.exp(self.log_std))
""",
    "overwritten": """
def act(net, states):
    mu, log_std = net(states).chunk(2, -1)
    log_std = log_std.clamp(-5, 2).exp()
    return Normal(mu, log_std).sample()
""",
    "softplus": """
class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Linear(4, 2)
        self.log_std = nn.Sequential(nn.Linear(4, 2), nn.Softplus())

    def dist(self, h):
        return Normal(self.mean(h), self.log_std(h))
""",
    "passed as a deviation": """
def sample(mean, log_std):
    return mean + torch.randn_like(mean) * log_std

z = sample(torch.zeros(3), torch.zeros(3).exp())
""",
    "a distribution of logarithms": """
def price(log_mu, log_sigma):
    return LogNormal(log_mu, log_sigma), Normal(log_mu, log_sigma).sample().exp()
""",
    "noise on logarithms": """
def jitter(log_price, log_sigma):
    return log_price + log_sigma * torch.randn_like(log_price)
""",
    "half a variance": """
def sample(mu, log_var):
    return mu + torch.randn_like(mu) * (0.5 * log_var).exp()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script, fixes=True)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
