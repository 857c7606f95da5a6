"""MDL029: reparameterization with uniform noise."""

import pytest

HEAD = """
import torch
"""
FAULTY = {
    "a method": """
class VAE:
    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.rand_like(std)  # <- MDL029
        return mu + eps * std
""",
    "in one line": """
def sample(mean, log_var):
    return mean + torch.exp(log_var / 2) * torch.rand_like(mean)  # <- MDL029
""",
    "a shape": """
def sample(mu, sigma):
    eps = torch.rand(mu.shape).to(mu.device)  # <- MDL029
    return eps * sigma + mu
""",
    "a policy": """
def act(mu, log_std):
    return mu + log_std.exp() * torch.rand(4)  # <- MDL029
""",
}
FAULTY["methods"] = """
class VAE:
    def reparameterize(self, mu, logvar):
        std = logvar.mul(0.5).exp_()
        eps = torch.rand(std.size())  # <- MDL029
        return eps.mul(std).add_(mu)
"""
CORRECT = {
    "normal noise": """
def sample(mu, logvar):
    std = torch.exp(0.5 * logvar)
    return mu + torch.randn_like(std) * std
""",
    "a logistic distribution": """
def sample(mu, log_scale):
    u = torch.rand_like(mu)
    return mu + torch.exp(log_scale) * (torch.log(u) - torch.log(1 - u))
""",
    "Gumbel noise": """
def sample(mu, scale):
    u = torch.rand_like(mu)
    gumbel = -torch.log(-torch.log(u))
    return mu + scale * gumbel
""",
    "a range": """
def draw(low, high):
    return low + torch.rand(4) * (high - low)
""",
    "a random jitter": """
def jitter(x, std):
    return x + torch.rand_like(x) * std
""",
    "noise that is centred": """
def sample(mu, sigma):
    eps = torch.rand_like(mu) - 0.5
    return mu + eps * sigma
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_noise(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "MDL029")
