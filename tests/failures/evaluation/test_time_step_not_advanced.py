"""EVL034: loops over the time steps whose time step never changes."""

import pytest

HEAD = """
import torch
from tqdm import tqdm
T = 50
kept = torch.cumprod(1 - torch.linspace(0.001, 0.2, T), 0)
def noised(x, t, noise):
    return kept[t, None].sqrt() * x + (1 - kept[t, None]).sqrt() * noise
"""
FAULTY = {
    "the loss of each time step": """
class Diffusion:
    def __init__(self, timesteps):
        self.timesteps = timesteps
    def terms(self, model, x):
        B, T = x.size(0), self.timesteps
        t = torch.full((B,), T - 1, dtype=torch.int64)  # <- EVL034
        losses = torch.zeros(B, T)
        for i in range(T - 1, -1, -1):
            noise = torch.randn_like(x)
            eps = model(noised(x, t, noise), t)
            losses[:, i] = (eps - noise).pow(2).mean(1)
        return losses
""",
    "a sampler": """
@torch.no_grad()
def sample(model, shape):
    x = torch.randn(shape)
    t = torch.ones(shape[0], dtype=torch.long) * (T - 1)  # <- EVL034
    for step in tqdm(reversed(range(T))):
        x = x - (1 - kept[step]).sqrt() * model(x, t)
    return x
""",
    "a keyword and a method": """
class Sampler:
    def __init__(self, num_steps):
        self.num_steps = num_steps
    def run(self, model, x):
        timestep = torch.tensor([self.num_steps - 1]).repeat(len(x))  # <- EVL034
        for i in range(self.num_steps):
            x = x + model(x, timestep=timestep) / self.num_steps
        return x
""",
    "filled in place before the loop": """
def nll(model, x, n_steps):
    t_batch = torch.empty(len(x)).long().fill_(n_steps - 1)  # <- EVL034
    total = 0
    for k in range(n_steps):
        total = total + model.loss(x, t_batch).mean()
    return total / n_steps
""",
}
CORRECT = {
    "filled in the loop": """
def sample(model, x):
    for i in reversed(range(T)):
        t = torch.full((len(x),), i)
        x = x - model(x, t)
    return x
""",
    "changed in place": """
def sample(model, x):
    t = torch.full((len(x),), T - 1)
    for i in reversed(range(T)):
        t.fill_(i)
        x = x - model(x, t)
    steps = torch.ones(len(x)) * T
    for i in range(T):
        x = x - model(x, steps)
        steps -= 1
    times = torch.full((len(x),), T - 1)
    for i in range(T):
        times[:] = i
        x = x - model(x, times)
    return x
""",
    "the end of the interval": """
def sample(model, x):
    t_end = torch.full((len(x),), T - 1)
    for i in range(T):
        start = torch.full((len(x),), i)
        x = model(x, start, t_end)
        x = model(x, i, t_end)
    return x
""",
    "several draws of one step": """
def loss(model, x, draws=8):
    t = torch.full((len(x),), T - 1)
    return sum(model(noised(x, t, torch.randn_like(x)), t).mean() for _ in range(draws))
def another(model, x, draws=8):
    t = torch.full((len(x),), T - 1)
    total = 0
    for _ in range(draws):
        total += model(noised(x, t, torch.randn_like(x)), t).mean()
    return total
""",
    "lengths and classes": """
def decode(model, x, max_len, label):
    lengths = torch.full((len(x),), max_len)
    y = torch.full((len(x),), label)
    for i in range(max_len):
        x = model(x, lengths, y)
    return x
""",
    "a buffer of all time steps": """
def integrate(model, x):
    times = torch.zeros(T)
    steps = torch.ones(T)
    for i in range(T):
        x = model(x, steps)
        times[i] = x.mean()
    return times
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
