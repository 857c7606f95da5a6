"""LOS039: a diffusion model that predicts noise that is not in its input."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
kept = torch.linspace(1, 0, 50)
model = nn.Linear(4, 4)
criterion = nn.MSELoss()
"""
FAULTY = {
    "noise that is not passed on": """
def q_sample(x, t, noise=None):
    if noise is None:
        noise = torch.randn_like(x)
    return kept[t] * x + (1 - kept[t]) * noise
for x, t in batches:
    noise = torch.randn_like(x)
    xt = q_sample(x, t)
    loss = F.mse_loss(model(xt), noise)  # <- LOS039
    loss.backward()
""",
    "a function": """
def q_sample(x, t):
    return kept[t] * x + (1 - kept[t]) * torch.randn_like(x)
def step(x, t):
    noise = torch.randn_like(x)
    return F.mse_loss(model(q_sample(x, t)), noise)  # <- LOS039
""",
    "a class": """
class Diffusion:
    def q_sample(self, x, t):
        eps = torch.randn(x.shape)
        return kept[t] * x + (1 - kept[t]) * eps
    def loss(self, x, t):
        eps = torch.randn(x.shape)
        x_t = self.q_sample(x, t)
        prediction = self.model(x_t, t)
        return F.mse_loss(eps, prediction)  # <- LOS039
""",
    "a criterion": """
def add_noise(x):
    return x + torch.randn_like(x)
for x in batches:
    noise = torch.randn_like(x)
    noisy = add_noise(x)
    out = model(noisy)
    loss = criterion(out, noise)  # <- LOS039
    loss.backward()
""",
    "a default": """
def q_sample(x, t, noise=None):
    if noise is None:
        noise = torch.randn_like(x)
    return kept[t] * x + (1 - kept[t]) * noise
def step(x, t):
    noise = torch.randn_like(x)
    return F.l1_loss(model(q_sample(x, t)), noise)  # <- LOS039
""",
}
FAULTY |= {
    "drawn again in the sum, squared by hand": """
for x, t in batches:
    e = torch.randn_like(x)
    xt = kept[t].sqrt() * x + (1 - kept[t]).sqrt() * torch.randn_like(x)
    loss = (model(xt) - e).pow(2).mean()  # <- LOS039
    loss.backward()
""",
    "drawn again in the call": """
def step(x, sigma):
    noise = torch.randn_like(x)
    return criterion(model(x + sigma * torch.randn_like(x)), noise)  # <- LOS039
""",
}
CORRECT = {
    "the noise of the sum, with dropout noise elsewhere": """
def step(x, sigma):
    noise = torch.randn_like(x)
    noisy = x + sigma * noise
    return ((model(noisy + 0.01 * torch.randn_like(x)) - noise) ** 2).mean()
""",
    "made-up data": """
for step in range(10):
    x, y = torch.randn(32, 4), torch.randn(32, 4)
    loss = F.mse_loss(model(x + 0.1 * torch.randn_like(x)), y)
    loss.backward()
""",
    "noise that is passed on": """
def q_sample(x, t, noise=None):
    if noise is None:
        noise = torch.randn_like(x)
    return kept[t] * x + (1 - kept[t]) * noise
for x, t in batches:
    noise = torch.randn_like(x)
    xt = q_sample(x, t, noise)
    loss = F.mse_loss(model(xt), noise)
    loss.backward()
""",
    "the noise is passed": """
def q_sample(x, t, noise=None):
    if noise is None:
        noise = torch.randn_like(x)
    return kept[t] * x + (1 - kept[t]) * noise
def step(x, t):
    noise = torch.randn_like(x)
    return F.mse_loss(model(q_sample(x, t, noise)), noise)
""",
    "the noise is returned": """
def q_sample(x, t):
    noise = torch.randn_like(x)
    return kept[t] * x + (1 - kept[t]) * noise, noise
def step(x, t):
    x_t, noise = q_sample(x, t)
    return F.mse_loss(model(x_t), noise)
""",
    "the clean data": """
def add_noise(x):
    return x + torch.randn_like(x)
def step(x):
    return F.mse_loss(model(add_noise(x)), x)
""",
    "added in place": """
def step(x, t):
    noise = torch.randn_like(x)
    x_t = kept[t] * x + (1 - kept[t]) * noise
    return F.mse_loss(model(x_t), noise)
""",
    "a test of speed": """
def batch():
    return torch.randn(4, 4)
def step():
    x, target = batch(), torch.randn(4, 4)
    return F.mse_loss(model(x), target)
""",
    "a generator": """
def fakes(z):
    return model(z + torch.randn_like(z))
def step(x):
    noise = torch.randn_like(x)
    return criterion(fakes(noise), x)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_loss(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "LOS039")
