"""MDL047: a sinusoidal encoding with wrong frequencies, and correct programs that look like it."""

import pytest

HEAD = """
import math
import numpy as np
import torch
from torch import nn

"""

FAULTY = {
    "a loop over columns": """
def table(n, d):
    pe = torch.zeros(n, d)
    for pos in range(n):
        for i in range(0, d, 2):
            angle = pos / (10000 ** ((2 * i) / d))  # <- MDL047
            pe[pos, i], pe[pos, i + 1] = math.sin(angle), math.cos(angle)
    return pe
""",
    "an attribute, the power in a variable": """
class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        pe = torch.zeros(50, self.width)
        for pos in range(50):
            for i in range(0, self.width, 2):
                wavelength = 10000 ** ((2 * i) / self.width)  # <- MDL047
                pe[pos, i] = math.sin(pos / wavelength)
                pe[pos, i + 1] = math.cos(pos / wavelength)
""",
    "a comprehension over all columns": """
def table(n, dim):
    rows = np.array([[pos / np.power(10000, 2.0 * i / dim) for i in range(dim)] for pos in range(n)])  # <- MDL047
    rows[:, 0::2], rows[:, 1::2] = np.sin(rows[:, 0::2]), np.cos(rows[:, 1::2])
    return torch.tensor(rows)
""",
    "arange": """
def table(n, d, base=10000.0):
    position = torch.arange(n).unsqueeze(1)
    i = torch.arange(0, d, 2).float()
    angle = position / base ** (2 * i / d)  # <- MDL047
    return torch.cat([torch.sin(angle), torch.cos(angle)], 1)
""",
    "exp": """
def table(n, d):
    position = torch.arange(n).unsqueeze(1)
    frequencies = torch.exp(2 * torch.arange(0, d, 2) * (-math.log(10000.0) / d))  # <- MDL047
    return torch.cat([torch.sin(position * frequencies), torch.cos(position * frequencies)], 1)
""",
    "a missing minus": """
class Encoder(nn.Module):
    def __init__(self, d_model, n=100):
        super().__init__()
        pe = torch.zeros(n, d_model)
        position = torch.arange(0, n).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (math.log(10000.0) / d_model))  # <- MDL047
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
""",
    "divided by falling numbers": """
def embed(t, dim):
    half = dim // 2
    step = math.log(10000) / (half - 1)
    falling = torch.exp(torch.arange(half) * -step)  # <- MDL047
    angle = t[:, None] / falling
    return torch.cat((angle.sin(), angle.cos()), -1)
""",
}
CORRECT = {
    "a loop over columns": """
def table(n, d):
    pe = torch.zeros(n, d)
    for pos in range(n):
        for i in range(0, d, 2):
            pe[pos, i] = math.sin(pos / 10000 ** (i / d))
            pe[pos, i + 1] = math.cos(pos / 10000 ** ((i + 1) / d))
""",
    "a loop over pairs": """
def table(n, d):
    pe = torch.zeros(n, d)
    for pos in range(n):
        for i in range(d // 2):
            pe[pos, 2 * i] = math.sin(pos / 10000 ** (2 * i / d))
            pe[pos, 2 * i + 1] = math.cos(pos / 10000 ** (2 * i / d))
        for i in range(int(d / 2)):
            pe[pos, 2 * i] = math.sin(pos / np.power(10000, 2 * i / d))
""",
    "pairs by division": """
def table(n, d):
    angle = lambda pos: [pos / np.power(10000, 2 * (j // 2) / d) for j in range(d)]
    rows = np.array([angle(p) for p in range(n)])
    dim_t = torch.arange(d, dtype=torch.float32)
    temperature = 10000
    dim_t = temperature ** (2 * (dim_t // 2) / d)
    other = temperature ** (2 * torch.div(torch.arange(d), 2, rounding_mode="floor") / d)
    return np.sin(rows[:, 0::2]), np.cos(rows[:, 1::2]), torch.sin(torch.arange(n)[:, None] / dim_t)
""",
    "columns in a variable": """
def table(n, d):
    pos = torch.arange(0, n).float().unsqueeze(dim=1)
    _2i = torch.arange(0, d, step=2).float()
    pe = torch.zeros(n, d)
    pe[:, 0::2] = torch.sin(pos / (10000 ** (_2i / d)))
    pe[:, 1::2] = torch.cos(pos / (10000 ** (_2i / d)))
""",
    "exp": """
class Encoder(nn.Module):
    def __init__(self, d_model, n=100):
        super().__init__()
        pe = torch.zeros(n, d_model)
        position = torch.arange(0, n, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        grown = torch.exp(torch.arange(0, d_model, 2) * (math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position / grown)
""",
    "timesteps": """
def embed(t, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(0, half, dtype=torch.float32) / half)
    args = t[:, None].float() * freqs[None]
    step = math.log(10000) / (half - 1)
    other = t[:, None] * torch.exp(torch.arange(half) * -step)[None, :]
    return torch.cat([torch.cos(args), torch.sin(args), other.sin()], dim=-1)
""",
    "rotary": """
class Rotary(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        freqs = torch.outer(torch.arange(100).float(), inv_freq)
        angles = torch.arange(100)[:, None] * inv_freq
        self.register_buffer("cos", freqs.cos())
        self.register_buffer("sin", angles.sin())
""",
    "powers of two": """
def encode(x, n):
    bands = 2.0 ** torch.arange(n)
    other = 2 ** (2 * torch.arange(n) / n)
    return torch.cat([torch.sin(x[..., None] * bands), torch.cos(x[..., None] * other)], -1)
""",
    "pairs counted by the caller": """
def angle(pos, i, d):
    return pos / 10000 ** (2 * i / d)
def table(n, d):
    return [[math.sin(angle(p, i, d)) if k else math.cos(angle(p, i, d)) for i in range(d // 2) for k in (0, 1)]
            for p in range(n)]
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_lint_accepts_correct_scripts(lint_is_clean, script):
    lint_is_clean(HEAD + script)
