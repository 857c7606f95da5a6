"""MDL048: a network that gets the time on another scale in the sampler than in training."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

T = 100
betas = torch.linspace(1e-4, 0.02, T)
"""
TRAIN = """
def train(net, loader, opt):
    for x, _ in loader:
        t = DRAWN
        noise = torch.randn_like(x)
        loss = F.mse_loss(net(add_noise(x, t, noise), TIME), noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
"""
SAMPLE = """
@torch.no_grad()
def generate(net, n):
    x = torch.randn(n, 2)
    for i in ITERABLE:
        noise = net(x, TIME)
        x = step(x, noise, i)
    return x
"""
INDEX = "torch.randint(0, T, (len(x),), device=x.device)"
STEPS = "reversed(range(T))"


def program(drawn: str, time: str, iterable: str, sampled: str) -> str:
    """Return a program that trains with one time and samples with another one."""
    train = TRAIN.replace("DRAWN", drawn).replace("TIME", time)
    return HEAD + train + SAMPLE.replace("ITERABLE", iterable).replace("TIME", sampled)


FAULTY = {
    "divided in training": program(INDEX, "t.float() / T", STEPS, "torch.full((n,), i, dtype=torch.float)"),
    "divided in the sampler": program(INDEX, "t", STEPS, "torch.ones(n) * i / T"),
    "a list": program(INDEX, "t[:, None] / T", STEPS, "torch.tensor([i] * n).float()[:, None]"),
    "a flow": program("torch.rand(len(x), 1)", "t", "range(50)", "torch.full((n, 1), float(i))"),
    "a loop over shares": program(INDEX, "t", "torch.linspace(0, 1, 50)", "i.expand(n)"),
}
CLASS = """
class Diffusion(nn.Module):
    def forward(self, x):
        t = torch.randint(0, self.steps, (x.shape[0],))
        noise = torch.randn_like(x)
        return F.mse_loss(self.eps_model(self.noised(x, t, noise), t TRAINED), noise)

    def sample(self, n):
        x = torch.randn(n, *self.size)
        for k in range(self.steps - 1, -1, -1):
            x = self.step(x, torch.full((n,), k))
        return x

    @torch.inference_mode()
    def step(self, x, t):
        return self.update(x, self.eps_model(x, t SAMPLED), t)

diffusion = Diffusion()
for x in loader:
    diffusion(x).backward()
diffusion.sample(16)
"""
FAULTY["a class"] = HEAD + CLASS.replace(" TRAINED", " / self.steps").replace(" SAMPLED", "")
CORRECT = {
    "divided in both": program(INDEX, "t.float() / T", STEPS, "torch.full((n,), i / T)"),
    "divided in neither": program(INDEX, "t", STEPS, "torch.full((n,), i)"),
    "a flow": program("torch.rand(len(x), 1)", "t", "range(50)", "torch.full((n, 1), i / 50)"),
    "a loop over shares": program("torch.rand(len(x))", "t", "torch.linspace(0, 1, 50)", "i.expand(n)"),
    "unknown times": program("sample_times(len(x))", "t", STEPS, "torch.full((n,), i)"),
    "a share of all steps, multiplied": program("torch.rand(len(x)) * T", "t", STEPS, "torch.full((n,), i)"),
    "a class": HEAD + CLASS.replace(" TRAINED", "").replace(" SAMPLED", ""),
    "a wrapper that divides": program(INDEX, "t", STEPS, "torch.full((n,), i)")
    + """
class Scaled(nn.Module):
    def forward(self, x, t):
        return self.inner(x, t / T)
""",
    "another network": program(INDEX, "t / T", STEPS, "torch.full((n,), i)").replace("noise = net(x", "noise = ema(x"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_another_scale(lint_reports, script):
    lines = [
        line + "  # <- MDL048" if "noise = net(x" in line or "update(x, self.eps" in line else line
        for line in script.splitlines()
    ]
    lint_reports("\n".join(lines))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_the_same_scale(lint_is_clean, script):
    lint_is_clean(script, "MDL048")
