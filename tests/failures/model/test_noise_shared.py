"""MDL043: a reparameterization shares its noise."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable
from torch.distributions import Normal
"""
FAULTY = {
    "one number for each sample": """
class VAE:
    def reparameterize(self, mu, logvar):
        sigma = torch.exp(0.5 * logvar)
        eps = torch.FloatTensor(logvar.size()[0], 1).normal_(0, 1)  # <- MDL043
        eps = eps.expand(sigma.size())
        return mu + sigma * eps
""",
    "a policy": """
class Policy(nn.Module):
    def evaluate(self, state):
        mean, log_std = self.forward(state)
        std = log_std.exp()
        normal = Normal(0, 1)
        z = normal.sample()  # <- MDL043
        action = torch.tanh(mean + std * z.to(mean.device))
        return action, Normal(mean, std).log_prob(mean + std * z)
""",
    "a distribution as attribute": """
class Policy(nn.Module):
    def __init__(self, action_size):
        super().__init__()
        self.action_size = action_size
        self.normal = Normal(0, 1)

    def evaluate(self, state):
        mean, log_std = self(state)
        std = log_std.exp()
        z = self.normal.sample((self.action_size,))  # <- MDL043
        return torch.tanh(mean + std * z)
""",
    "one vector": """
class Encoder(nn.Module):
    def forward(self, x):
        mu, log_var = self.mu(x), self.log_var(x)
        noise = torch.randn(self.latent_dim).to(x.device)  # <- MDL043
        return mu + torch.exp(log_var / 2) * noise
""",
    "one row": """
def reparametrize(mu, logvar):
    eps = Variable(torch.randn(1, mu.size(1)))  # <- MDL043
    return eps.mul(torch.exp(logvar * 0.5)).add_(mu)
""",
    "one number": """
def sample_latent(mean, rho):
    sigma = F.softplus(rho)
    return mean + sigma * torch.randn(1, device=mean.device)  # <- MDL043
""",
}
CORRECT = {
    "the shape of the mean": """
def reparameterize(mu, logvar):
    std = torch.exp(0.5 * logvar)
    return mu + std * torch.randn(mu.size()) + mu + std * torch.randn(*mu.shape)
""",
    "both sizes": """
class VAE(nn.Module):
    def reparameterize(self, mu, logvar):
        eps = torch.randn(mu.size(0), self.latent_dim)
        return mu + torch.exp(0.5 * logvar) * eps
""",
    "a shape as a variable": """
def reparameterize(mu, logvar):
    shape = mu.shape
    std = torch.exp(0.5 * logvar)
    eps = torch.randn(shape)
    other = torch.FloatTensor(std.size()).normal_()
    return mu + std * eps, mu + std * other
""",
    "a distribution of many": """
def sample(mean, log_std):
    std = log_std.exp()
    normal = Normal(torch.zeros_like(mean), torch.ones_like(std))
    z = normal.sample()
    return mean + std * z
""",
    "the sizes of the mean": """
def evaluate(mean, log_std):
    std = log_std.exp()
    z = Normal(0, 1).sample(mean.shape)
    return mean + std * z
""",
    "an action for one state": """
class Policy(nn.Module):
    def get_action(self, state):
        mean, log_std = self(state)
        return mean + log_std.exp() * torch.randn(1)
""",
    "numbers": """
def sample_price(mu, sigma):
    return mu + sigma * torch.randn(1)
""",
    "several samples": """
def sample(mu, logvar, n):
    eps = torch.randn(n, mu.size(0), mu.size(1))
    return mu + torch.exp(0.5 * logvar) * eps
""",
    "a sum over mixtures": """
def sample(self, mu, log_sigma):
    eps = torch.randn(mu.size(0), mu.size(1), 1)
    return mu + torch.exp(log_sigma) * eps
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_noise(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL043")
