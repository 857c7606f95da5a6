"""LOS052: examples of a diffusion model get the noise of one step."""

import pytest

FAULTY = {
    "a class": """
import torch
class Diffusion:
    def __init__(self, steps=100):
        self.beta = torch.linspace(1e-4, 0.02, steps)
        self.alpha = 1.0 - self.beta
        self.alpha_hat = torch.cumprod(self.alpha, dim=0)

    def noise_images(self, x, t):
        sqrt_alpha = torch.sqrt(self.alpha[t])[:, None, None, None]
        sqrt_rest = torch.sqrt(1 - self.alpha[t])[:, None, None, None]
        eps = torch.randn_like(x)
        return sqrt_alpha * x + sqrt_rest * eps, eps  # <- LOS052
""",
    "roots in advance": """
import torch
betas = torch.linspace(1e-4, 0.02, 100)
alphas = 1 - betas
root, rest = torch.sqrt(alphas), torch.sqrt(1 - alphas)
def q_sample(x0, t, noise):
    return root.gather(0, t).view(-1, 1) * x0 + rest.gather(0, t).view(-1, 1) * noise  # <- LOS052
""",
}
CORRECT = {
    "the cumulative product": FAULTY["a class"]
    .replace("self.alpha[t]", "self.alpha_hat[t]")
    .replace("  # <- LOS052", ""),
    "one step of a loop": """
import torch
betas = torch.linspace(1e-4, 0.02, 100)
alphas = 1 - betas
def forward_process(x):
    for t in range(100):
        noise = torch.randn_like(x)
        x = alphas[t].sqrt() * x + betas[t].sqrt() * noise
    return x
""",
    "all steps in a list": """
import torch
betas = torch.linspace(1e-4, 0.02, 100)
alphas = 1 - betas
xs = [torch.randn(4)]
for t in range(100):
    xs.append(alphas[t].sqrt() * xs[t - 1] + (1 - alphas[t]).sqrt() * torch.randn(4))
""",
    "from the step before": """
import torch
betas = torch.linspace(1e-4, 0.02, 100)
alphas = 1 - betas
def q_step(x_prev, t, noise):
    return torch.sqrt(alphas[t]) * x_prev + torch.sqrt(1 - alphas[t]) * noise
""",
    "a cosine schedule": """
import torch
kept = torch.cos(torch.linspace(0, 1.5, 100)) ** 2
betas = 1 - kept[1:] / kept[:-1]
def q_sample(x, t, noise):
    return kept[t].sqrt() * x + (1 - kept[t]).sqrt() * noise
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_share_of_one_step(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS052")
