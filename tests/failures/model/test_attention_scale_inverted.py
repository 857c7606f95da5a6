"""MDL031: attention scores that are multiplied by the root of their dimension."""

import pytest

HEAD = """
import math
import torch
import torch.nn.functional as F
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.head_dim = dim // heads
        self.scale = {scale}
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x, mask=None):
        q, k, v = self.q(x), self.k(x), self.v(x)
"""


def program(lines: str, scale: str = "self.head_dim ** -0.5") -> str:
    return HEAD.format(scale=scale) + "".join(f"        {line}\n" for line in lines.strip().splitlines())


MARK = "  # <- MDL031"
FAULTY = {
    "one line": program(f"return F.softmax(q @ k.transpose(-2, -1) * math.sqrt(q.size(-1)), dim=-1) @ v{MARK}"),
    "an attribute": program(
        f"attn = (q @ k.mT) * self.scale{MARK}\nreturn attn.softmax(dim=-1) @ v", "self.head_dim ** 0.5"
    ),
    "divided by the inverse": program(
        f"scores = torch.matmul(q, k.transpose(1, 2))\nscores = scores / self.scale{MARK}\n"
        "return self.softmax(scores) @ v"
    ),
    "masked": program(
        f"scores = torch.bmm(q, k.permute(0, 2, 1)) * self.head_dim ** (1 / 2){MARK}\n"
        "scores = scores.masked_fill(mask == 0, -1e9)\nreturn torch.softmax(scores, -1) @ v"
    ),
    "einsum and a variable": program(
        "root = math.sqrt(q.shape[-1])\n"
        f'scores = root * torch.einsum("bid,bjd->bij", q, k) + mask{MARK}\nreturn scores.softmax(-1) @ v'
    ),
    "fused": program(f"return F.scaled_dot_product_attention(q, k, v, scale=math.sqrt(self.head_dim)){MARK}"),
}
CORRECT = {
    "divided": program("return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v"),
    "multiplied by the inverse": program("return ((q @ k.mT) * self.scale).softmax(-1) @ v"),
    "divided by an attribute": program("return ((q @ k.mT) / self.scale).softmax(-1) @ v", "math.sqrt(self.head_dim)"),
    "one over the root": program("return (q @ k.mT * (1 / math.sqrt(self.head_dim))).softmax(-1) @ v"),
    "cosines": program(
        "q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)\n"
        "return (q @ k.mT * math.sqrt(self.head_dim)).softmax(-1) @ v"
    ),
    "a learned scale": program("return (q @ k.mT * self.scale).softmax(-1) @ v", "nn.Parameter(torch.ones(1))"),
    "embeddings": program("x = x * math.sqrt(self.head_dim)\nreturn (x @ x.mT / self.head_dim ** 0.5).softmax(-1) @ v"),
    "fused": program("return F.scaled_dot_product_attention(q, k, v, scale=1 / math.sqrt(self.head_dim))"),
    "the root of a temperature": program("return (q @ k.mT * math.sqrt(self.beta)).softmax(-1) @ v"),
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_a_scale_that_is_inverted(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "MDL031")
