"""LOS013: a KL divergence that is summed next to a reconstruction loss that is averaged."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
"""
FAULTY = {
    "summed for each sample": """
def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 784))  # <- LOS013
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
    return bce + kld
""",
    "the mean of sums, of images": """
net = nn.Conv2d(1, 4, 3)
def loss_function(recon, x, mu, logvar):
    kld = torch.mean(-0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1), dim=0)
    kl = (-0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1)).mean()
    return F.mse_loss(recon, x) + kl, kld  # <- LOS013
""",
    "a function with variables": """
def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 784))  # <- LOS013
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD
""",
    "a module and a method": """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.criterion = nn.MSELoss()
    def loss(self, out, x, mu, log_var):
        return self.criterion(out, x) + (-0.5 * (1 + log_var - mu ** 2 - log_var.exp()).sum())  # <- LOS013
""",
    "a function for the divergence, and a weight of 1": """
def kl(mu, logvar):
    return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
def vae_loss(recon, x, mu, logvar, beta=1.0):
    rec = F.mse_loss(recon, x)  # <- LOS013
    return rec + beta * kl(mu, logvar), rec
""",
    "the other way round": """
def loss_fn(out, x, mu, logvar):
    rec = F.mse_loss(out, x, reduction="sum")  # <- LOS013
    kld = -0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
    return rec + kld
""",
    "PyTorch's divergence": """
from torch.distributions import Independent, Normal, kl_divergence
def negative_elbo(enc, dec, prior, x):
    q = Independent(Normal(*enc(x)), 1)
    misfit = nn.functional.binary_cross_entropy(dec(q.rsample()), x)  # <- LOS013
    return misfit + kl_divergence(q, prior).sum()
""",
    "PyTorch's divergence under a name": """
def step(model, x, prior):
    out, posterior = model(x)
    kl = torch.distributions.kl_divergence(posterior, prior)
    rec = (out - x).pow(2).mean()  # <- LOS013
    loss = rec + 1.0 * kl.sum()
    loss.backward()
""",
    "the sum over the batch size, of a function that returns both terms": """
SIDE = 10
class VAE(nn.Module):
    def __init__(self, pixels=SIDE * SIDE, hidden=32):
        super().__init__()
        self.decoder = nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, pixels))
def elbo_terms(out, x, mu, logvar):
    rec = F.binary_cross_entropy_with_logits(out, x, reduction="mean")  # <- LOS013
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
    return rec, kld
def step(model, x):
    out, mu, logvar = model(x)
    rec, kld = elbo_terms(out, x, mu, logvar)
    (rec + kld).backward()
""",
    "a sum over the batch size next to a sum": """
def loss_function(recon, x, mu, logvar):
    mse = F.mse_loss(recon, x, reduction="sum") / x.shape[0]  # <- LOS013
    return mse + -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
""",
    "methods": """
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
    def divergence(self, mu, logvar, batch_size):
        return -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum() / batch_size
    def loss(self, recon, x, mu, logvar, batch_size):
        return F.mse_loss(recon, x) + self.divergence(mu, logvar, batch_size)  # <- LOS013
""",
    "a formula with the deviation": """
def elbo(out, x, mu, sigma):
    kl = 0.5 * (mu ** 2 + sigma ** 2 - 2 * torch.log(sigma) - 1)
    return ((x - out) ** 2).mean() + torch.sum(kl)  # <- LOS013
""",
    "a mean next to a sum over the batch size, in a variable": """
def loss_function(recon, x, mu, logvar):
    n = x.size(0)
    BCE = F.binary_cross_entropy(recon, x, reduction="sum") / n  # <- LOS013
    KLD = -0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD, BCE, KLD
""",
}
FAULTY |= {
    "the sum over all next to one for each sample": """
def loss_function(recon, x, mu, logvar):
    rec = ((recon - x) ** 2 / (2 * 0.3 ** 2)).sum(dim=-1)  # <- LOS013
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (rec + kl).mean()
""",
    "in methods, for each image": """
class NegativeELBO:
    def reconstruction(self, recon, x):
        return F.binary_cross_entropy(recon, x, reduction="none").sum(dim=(1, 2, 3))  # <- LOS013
    def divergence(self, q, prior):
        return torch.distributions.kl_divergence(q, prior).sum()
    def __call__(self, recon, x, q, prior):
        return torch.mean(self.reconstruction(recon, x) + self.divergence(q, prior))
""",
    "the sum over all next to the mean of sums": """
def loss_function(recon, x, mu, logvar):
    rec = F.mse_loss(recon, x, reduction="none").sum(1).mean()  # <- LOS013
    return rec + 0.5 * (logvar.exp() + mu ** 2 - 1 - logvar).sum()
""",
}
CORRECT = {
    "both for each sample, then the mean": """
def loss_function(recon, x, mu, logvar):
    rec = ((recon - x) ** 2 / 2).sum(dim=-1)
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=-1)
    return (rec + kl).mean()
""",
    "one for each sample, next to the mean of such": """
def loss_function(recon, x, mu, logvar):
    rec = F.mse_loss(recon, x, reduction="none").sum(dim=(1, 2, 3))
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
    return (rec + kl).mean()
""",
    "a small weight of the sum next to one for each sample": """
def loss_function(recon, x, mu, logvar):
    rec = (recon - x).square().sum(-1)
    return (rec - 0.5 * 0.001 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())).mean()
""",
    "the sum of each sample is summed": """
def loss_function(recon, x, mu, logvar):
    rec = (recon - x).square().sum(-1).sum()
    return (rec - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())) / len(x)
""",
    "both over the batch size, in a variable": """
def loss_function(recon, x, mu, logvar):
    n = x.size(0)
    BCE = F.binary_cross_entropy(recon, x, reduction="sum") / n
    return BCE + -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / n
""",
    "over another number, in a variable": """
def loss_function(recon, x, mu, logvar):
    n = x.numel()
    return F.mse_loss(recon, x, reduction="sum") / n + -0.5 * torch.mean(1 + logvar - mu.pow(2) - logvar.exp())
""",
    "both over the batch size": """
net = nn.Conv2d(1, 4, 3)
def terms(out, x, mu, logvar):
    rec = F.mse_loss(out, x, reduction="sum") / len(x)
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / x.size(0)
    return rec, kld
def step(model, x):
    rec, kld = terms(*model(x))
    (rec + kld).backward()
""",
    "over the batch size, of few values": """
net = nn.Linear(16, 2 * 4)
def loss_function(recon, x, mu, logvar):
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
    return F.mse_loss(recon, x) + kld
""",
    "times the number of values": """
def loss_function(recon, x, mu, logvar):
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
    return 784 * F.mse_loss(recon, x) + kld
""",
    "over all values": """
net = nn.Conv2d(1, 4, 3)
def loss_function(recon, x, mu, logvar):
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / x.numel()
    return F.mse_loss(recon, x) + kld
""",
    "summed for each sample of few values": """
net = nn.Linear(16, 2)
def loss_function(recon_x, x, mu, logvar):
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
    return F.mse_loss(recon_x, x) + kld
""",
    "both for each sample": """
def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x.view(-1, 784), reduction="none").sum(1).mean()
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
    return bce + kld
""",
    "summed for each sample, with a weight": """
def loss_function(recon_x, x, mu, logvar):
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1).mean()
    return F.binary_cross_entropy(recon_x, x.view(-1, 784)) + 0.001 * kld
""",
    "both summed": """
def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 784), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD
""",
    "a weight makes up for it": """
def loss_function(recon, x, mu, logvar, kld_weight):
    rec = F.mse_loss(recon, x)
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return rec + kld_weight * kld + 0.00025 * kld
""",
    "divided by the number of values": """
def loss_function(recon, x, mu, logvar):
    rec = F.mse_loss(recon, x)
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    kld /= x.size(0) * 784
    return rec + kld
""",
    "over the code, then the mean": """
def loss_function(recon, x, mu, logvar):
    kld = torch.mean(-0.5 * torch.sum(1 + logvar - mu ** 2 - logvar.exp(), dim=1), dim=0)
    return F.mse_loss(recon, x) + kld
""",
    "divided in the expression": """
def loss_function(recon, x, mu, logvar):
    return F.mse_loss(recon, x) + -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / x.numel()
""",
    "PyTorch's divergence, for each sample": """
def negative_elbo(out, x, q, prior):
    misfit = F.binary_cross_entropy(out, x, reduction="sum")
    return (misfit + torch.distributions.kl_divergence(q, prior).sum()) / len(x)
def another(out, x, q, prior):
    kl = torch.distributions.kl_divergence(q, prior).sum(1)
    return F.mse_loss(out, x) + kl.mean()
def weighted(out, x, q, prior):
    return F.mse_loss(out, x) + 1e-4 * torch.distributions.kl_divergence(q, prior).sum()
""",
    "squares and a penalty that has a logarithm": """
def loss_function(out, x, w):
    return ((out - x) ** 2).mean() + torch.sum(torch.log(1 + w ** 2))
""",
    "both are sums of squares": """
def loss_function(out, x, mu, logvar):
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (out - x).square().sum() + kl
""",
    "another penalty": """
def loss_function(out, x, w):
    return F.mse_loss(out, x) + torch.sum(w ** 2)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_reconstruction(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS013")
