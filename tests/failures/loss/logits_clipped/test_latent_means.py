"""LOS014 in a VAE: a ReLU on the mean of the latent values."""

import pytest

VAE = """
import torch
import torch.nn.functional as F
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.decoder = nn.Linear(20, 784)
        self.mean_layer = nn.Sequential(nn.Linear(400, 20), {end})

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return {mean}, self.fc22(h)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decoder(self.reparameterize(mu, logvar)), mu, logvar


def kl_loss(mu, logvar):
    return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
"""
CHUNKS = """
import torch
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), {last})
        self.decoder = nn.Linear(10, 784)

    def forward(self, x):
        h = self.encoder(x)
        mu, sigma = h.chunk(2, dim=1)
        z = mu + sigma * torch.randn_like(sigma)
        kld = 0.5 * torch.sum(mu**2 + sigma**2 - torch.log(1e-8 + sigma**2) - 1)
        return self.decoder(z), kld
"""
FAULTY = {
    "a function": VAE.format(end="nn.Tanh()", mean="(\n            F.relu(self.fc21(h))  # <- LOS014\n        )"),
    "a sequence": VAE.format(end="nn.ReLU()", mean="self.mean_layer(h)").replace(
        "nn.Sequential(nn.Linear(400, 20), nn.ReLU())",
        "nn.Sequential(\n            nn.Linear(400, 20),\n            nn.ReLU(),  # <- LOS014\n        )",
    ),
    "the encoder": CHUNKS.format(last="nn.Linear(64, 20),\n            nn.ReLU(),  # <- LOS014\n        "),
}
CORRECT = {
    "a linear layer": VAE.format(end="nn.ReLU()", mean="self.fc21(h)"),
    "a tanh": VAE.format(end="nn.Tanh()", mean="self.mean_layer(h)"),
    "a hidden layer": CHUNKS.format(last="nn.Linear(64, 20)"),
    "a leaky ReLU": VAE.format(end="nn.LeakyReLU(0.2)", mean="self.mean_layer(h)"),
    "no divergence": VAE.format(end="nn.ReLU()", mean="self.mean_layer(h)").partition("\n\ndef kl_loss")[0],
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_relu(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS014")
