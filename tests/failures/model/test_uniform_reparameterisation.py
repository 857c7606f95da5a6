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
FAULTY |= {
    "a diffusion model, whose function gets the noise": """
class Diffusion:
    def __init__(self, betas):
        self.abar = (1 - betas).cumprod(0)

    def q_sample(self, x0, t, noise=None):
        if noise is None:
            noise = torch.randn_like(x0)
        ab = self.abar[t].unsqueeze(1)
        return ab.sqrt() * x0 + (1 - ab).sqrt() * noise

    def loss(self, model, x0, t):
        noise = torch.rand_like(x0)  # <- MDL029
        return torch.nn.functional.mse_loss(model(self.q_sample(x0, t, noise), t), noise)
""",
    "a function with stored roots": """
def noise_images(x, t, sqrt_alphas_cumprod, sqrt_one_minus_alphas_cumprod):
    eps = torch.rand(x.shape, device=x.device)  # <- MDL029
    return sqrt_alphas_cumprod[t] * x + sqrt_one_minus_alphas_cumprod[t] * eps, eps
""",
    "a scheduler of diffusers": """
def train_step(model, noise_scheduler, images, timesteps):
    noise = torch.rand_like(images)  # <- MDL029
    noisy = noise_scheduler.add_noise(images, noise, timesteps)
    return torch.nn.functional.mse_loss(model(noisy, timesteps).sample, noise)
""",
}
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
    "normal noise of a diffusion model, with random times": """
def loss(model, x0, abar):
    t = torch.rand(len(x0), 1)
    noise = torch.randn_like(x0)
    x_t = (1 - t) * x0 + t * noise
    noisy = abar.sqrt() * x0 + (1 - abar).sqrt() * noise
    return model(x_t, t), model(noisy, t), noise
""",
    "uniform noise made normal": """
def noised(x, abar):
    u = torch.rand_like(x).clamp(1e-6, 1 - 1e-6)
    noise = torch.erfinv(2 * u - 1) * 2 ** 0.5
    return abar.sqrt() * x + (1 - abar).sqrt() * noise
""",
    "a function of the program that adds noise to a part": """
def add_noise(x, noise, share):
    return x + share * (noise - 0.5)
def noised(x):
    return add_noise(x, torch.rand_like(x), 0.1)
""",
    "points in a disc": """
def disc(centre, r):
    angle = torch.rand(10) * 6.28
    radius = r * (1 - torch.rand(10)).sqrt()
    return centre + radius * angle.cos()
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
