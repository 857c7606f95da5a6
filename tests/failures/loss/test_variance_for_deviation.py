"""LOS021: the exponential of a log-variance that is used as a standard deviation."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.distributions import Normal
"""

FAULTY = {
    "a distribution, with intervals that take half": """
def nll(mu, log_var, y):
    return -Normal(mu, log_var.exp()).log_prob(y).mean()  # <- LOS021

def intervals(model, x):
    mu, log_var = model(x)
    std = torch.exp(0.5 * log_var)
    return mu - 1.64 * std, mu + 1.64 * std
""",
    "a reparameterisation as a method": """
class VAE(nn.Module):
    def reparameterize(self, mu, logvar):
        std = logvar.exp()  # <- LOS021
        eps = torch.randn_like(std)
        return eps.mul(std) + mu

def kl(mu, logvar):
    return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
""",
    "in one expression": """
def sample(self):
    return self.mean + torch.exp(self.log_sigma2) * torch.randn(3)  # <- LOS021

def penalty(self):
    return 0.5 * (self.log_sigma2.exp() + self.mean**2 - 1 - self.log_sigma2).sum()
""",
    "torch.normal": """
def draw(mu, log_variance):
    return torch.normal(mu, torch.exp(log_variance))  # <- LOS021
def loss(mu, log_variance, y):
    return ((y - mu) ** 2 * torch.exp(-log_variance) + log_variance).mean()
""",
}

CORRECT = {
    "half of it": """
def reparameterize(mu, logvar):
    return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
def kl(mu, logvar):
    return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
""",
    "the logarithm of a deviation, whatever its name": """
def reparameterize(mu, logvar):
    return mu + torch.randn_like(mu) * torch.exp(logvar)
def kl(mu, logvar):
    return -0.5 * torch.sum(1 + 2 * logvar - mu.pow(2) - torch.exp(2 * logvar))
""",
    "used in one place only": """
def policy(mu, log_var):
    return Normal(mu, log_var.exp())
""",
    "the root, and the variance of a loss": """
def reparameterize(mu, logvar):
    var = logvar.exp()
    return mu + var.sqrt() * torch.randn_like(mu)
def loss(mu, logvar, y):
    return nn.functional.gaussian_nll_loss(mu, y, logvar.exp()) - 0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean()
""",
    "a log-deviation": """
def policy(mu, log_std):
    return Normal(mu, log_std.exp())
def kl(mu, log_var):
    return -0.5 * torch.sum(1 + log_var - mu.pow(2) - log_var.exp())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script)
