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
    "the deviation of a network, in a Gaussian loss": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu, self.raw = nn.Linear(3, 1), nn.Linear(3, 1)
    def forward(self, x):
        sigma = nn.functional.softplus(self.raw(x)) + 1e-3
        return self.mu(x), sigma
net, criterion = Net(), nn.GaussianNLLLoss()
def train(x, y):
    mean, spread = net(x)
    return criterion(mean, y, spread)  # <- LOS021
def interval(x):
    mu, sigma = net(x)
    return mu - 1.96 * sigma, mu + 1.96 * sigma
""",
    "an output of a network, with the width of an interval in another function": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu, self.raw = nn.Linear(3, 1), nn.Linear(3, 1)
    def forward(self, x):
        return self.mu(x), nn.functional.softplus(self.raw(x)) + 1e-3
def coverage(model, x, y, z=1.96):
    centre, s = model(x)
    return ((y > centre - z * s) & (y < centre + z * s)).float().mean()
net = Net()
def train(x, y):
    mean, spread = net(x)
    return nn.functional.gaussian_nll_loss(mean, y, spread)  # <- LOS021
print(coverage(net, torch.randn(4, 3), torch.randn(4, 1)))
""",
    "by its name": """
def loss(mu, std, y):
    return nn.functional.gaussian_nll_loss(mu, y, var=std)  # <- LOS021
""",
    "a root under another name": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.nll = nn.GaussianNLLLoss(full=True)
    def loss(self, mu, log_var, y):
        s = torch.exp(0.5 * log_var)
        return self.nll(mu, y, s)  # <- LOS021
""",
    "a distribution that also samples": """
def loss(mu, scale, y):
    return nn.functional.gaussian_nll_loss(mu, y, scale)  # <- LOS021
def draw(mu, scale):
    return Normal(mu, scale).sample()
""",
    "a variance for a distribution": """
def draw(mu, var):
    return Normal(mu, var).sample()  # <- LOS021
def loss(mu, var, y):
    return nn.functional.gaussian_nll_loss(mu, y, var)
""",
    "a square for noise": """
def draw(mu, std):
    variance = std ** 2
    return mu + torch.randn_like(mu) * variance  # <- LOS021
""",
    "noise for a diffusion model": """
def diffuse(x, t, noise, abar):
    return abar.sqrt()[t, None] * x + (1 - abar[t, None]) * noise  # <- LOS021
""",
    "noise for a diffusion model, in a class": """
class Schedule:
    def add_noise(self, x, t):
        a = self.abar[t].view(-1, 1, 1, 1)
        noise = torch.randn_like(x)
        return (1.0 - a) * noise + torch.sqrt(a) * x, noise  # <- LOS021
""",
}

FAULTY |= {
    "a log-variance under another name": """
class VAE(nn.Module):
    def forward(self, x):
        h = self.body(x)
        mu, lv = self.mu(h), self.lv(h)
        z = mu + torch.randn_like(mu) * torch.exp(lv)  # <- LOS021
        return self.decode(z), mu, lv
def loss(rec, x, mu, lv):
    return F.mse_loss(rec, x, reduction="sum") - 0.5 * torch.sum(1 + lv - mu.pow(2) - lv.exp())
""",
    "the divergence written the other way round": """
def encode(h, eps):
    m, s = net(h).chunk(2, -1)
    return m + s.exp() * eps, 0.5 * (s.exp() + m ** 2 - 1 - s).sum(-1).mean()  # <- LOS021
""",
}

CORRECT = {
    "half a log-variance under another name": """
def encode(h, eps):
    m, s = net(h).chunk(2, -1)
    return m + (0.5 * s).exp() * eps, 0.5 * (s.exp() + m ** 2 - 1 - s).sum(-1).mean()
""",
    "a log-deviation in the divergence": """
def encode(h, eps):
    m, s = net(h).chunk(2, -1)
    return m + s.exp() * eps, 0.5 * ((2 * s).exp() + m ** 2 - 1 - 2 * s).sum(-1).mean()
""",
    "a square for a Gaussian loss": """
def loss(mu, sigma, y):
    return nn.functional.gaussian_nll_loss(mu, y, sigma ** 2)
def draw(mu, sigma):
    return Normal(mu, sigma).sample()
""",
    "the other output of a network": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu, self.raw, self.std = nn.Linear(3, 1), nn.Linear(3, 1), nn.Linear(3, 1)
    def forward(self, x):
        return self.mu(x), self.raw(x).exp(), self.std(x).exp()
def coverage(model, x, y, z=1.96):
    centre, _, s = model(x)
    return (y > centre - z * s).float().mean()
net = Net()
def train(x, y):
    mean, spread, _ = net(x)
    return nn.functional.gaussian_nll_loss(mean, y, spread)
print(coverage(net, torch.randn(4, 3), torch.randn(4, 1)))
""",
    "a square of a network's output": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu, self.raw = nn.Linear(3, 1), nn.Linear(3, 1)
    def forward(self, x):
        return self.mu(x), self.raw(x).exp()
def coverage(model, x, y, z=1.96):
    centre, s = model(x)
    return (y > centre - z * s).float().mean()
net = Net()
def train(x, y):
    mean, spread = net(x)
    return nn.functional.gaussian_nll_loss(mean, y, spread.square())
print(coverage(net, torch.randn(4, 3), torch.randn(4, 1)))
""",
    "a variance in all places": """
def loss(mu, sigma, y):
    return nn.functional.gaussian_nll_loss(mu, y, sigma)
def interval(mu, sigma):
    return mu - 1.96 * torch.sqrt(sigma), mu + 1.96 * torch.sqrt(sigma)
""",
    "a square that is called std": """
def loss(mu, raw, y):
    std = raw.exp().pow(2)
    return nn.functional.gaussian_nll_loss(mu, y, std)
""",
    "a log-variance of which the exponential is passed": """
def loss(mu, log_var, y):
    std = log_var.exp()
    return nn.functional.gaussian_nll_loss(mu, y, std)
""",
    "a number without another use": """
def loss(mu, sigma, y):
    return nn.functional.gaussian_nll_loss(mu, y, sigma)
""",
    "the root of the variance": """
def draw(mu, var):
    dist = Normal(mu, var.sqrt())
    return dist.sample() + torch.randn(3) * var ** 0.5
def loss(mu, var, y):
    return nn.functional.gaussian_nll_loss(mu, y, var)
""",
    "another variable that is called var": """
def draw(mu, var):
    return Normal(mu, var).sample()
""",
    "an own loss of the deviation": """
def gaussian_nll(mu, y, std):
    return (std.log() + 0.5 * ((y - mu) / std) ** 2).mean()
def loss(mu, std, y):
    return gaussian_nll(mu, y, std)
""",
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
    "noise for a diffusion model": """
def diffuse(x, t, noise, abar):
    return abar.sqrt()[t, None] * x + (1 - abar[t, None]).sqrt() * noise
def posterior(x0, xt, t, abar, before, beta):
    return (before[t].sqrt() * beta[t] / (1 - abar[t])) * x0 + ((1 - before[t]) / (1 - abar[t])) * xt
""",
    "an average, and a root of something else": """
def average(mean, value, decay, scale):
    mean = decay * mean + (1 - decay) * value
    return torch.sqrt(scale) * mean + (1 - decay) * torch.randn_like(mean)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script)
