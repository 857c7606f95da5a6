"""LOS041: embeddings that are normalised over the samples of the batch."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(192, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for rows in torch.arange(192).split(32):
    optimizer.zero_grad()
    a, b = model(x[rows]), model(x[rows] + 0.1)
    own = torch.arange(len(rows))
"""
TAIL = """
    loss.backward()
    optimizer.step()
"""
FAULTY = {
    "a product": """
    a, b = F.normalize(a, dim=0), F.normalize(b, dim=0)  # <- LOS041
    loss = F.cross_entropy(a @ b.t() / 0.1, own)
""",
    "a negative dimension, divided by the norm": """
    a, b = a / a.norm(dim=-2, keepdim=True), b / b.norm(dim=-2, keepdim=True)
    loss = F.cross_entropy(torch.mm(a, b.transpose(0, 1)) / 0.1, own)
    loss.backward()  # <- LOS041
""",
    "both views": """
    z = F.normalize(torch.cat([a, b]), p=2, dim=0)  # <- LOS041
    loss = F.cross_entropy(torch.matmul(z[:32], z[32:].T), own)
""",
    "a cosine": "    loss = 1 - F.cosine_similarity(a, b, dim=0).mean()  # <- LOS041\n",
    "a module, one side detached": "    loss = -nn.CosineSimilarity(dim=0)(a, b.detach()).mean()  # <- LOS041\n",
}
CORRECT = {
    "features": """
    a, b = F.normalize(a, dim=1), F.normalize(b, dim=-1)
    loss = F.cross_entropy(a @ b.t() / 0.1, own)
""",
    "a cross-correlation": """
    a, b = F.normalize(a, dim=0), F.normalize(b, dim=0)
    loss = (a.T @ b - torch.eye(6)).pow(2).sum()
""",
    "columns of weights": """
    weight = model[2].weight.t()
    loss = -(F.normalize(model[:2](x[rows]), dim=1) @ F.normalize(weight, dim=0)).mean()
""",
    "one vector": "    loss = 1 - F.cosine_similarity(a[0], b[0], dim=0)\n",
    "a correlation": "    loss = -F.cosine_similarity(a - a.mean(0), b - b.mean(0), dim=0).mean()\n",
    "a cosine of features": "    loss = 1 - F.cosine_similarity(a, b, dim=1).mean()\n",
    "samples as columns": """
    a, b = F.normalize(a.T, dim=0), F.normalize(b.T, dim=0)
    loss = F.cross_entropy(a.T @ b / 0.1, own)
""",
}
LINTED = {
    "a method": """
import torch
import torch.nn.functional as F

class Loss(torch.nn.Module):
    def forward(self, z1, z2):
        z1 = F.normalize(z1, p=2, dim=0)  # <- LOS041
        z2 = F.normalize(z2, p=2, dim=0)
        return F.cross_entropy(z1 @ z2.t() / self.temperature, torch.arange(len(z1)))
""",
    "a function and a position": """
import torch
from torch.nn.functional import normalize

def unit(z):
    return normalize(z, 2, 0)  # <- LOS041

def similarities(a, b):
    return torch.matmul(unit(a), unit(b).transpose(0, 1))
""",
    "a norm": """
import torch

def similarities(z):
    z = z / z.norm(dim=0, keepdim=True)  # <- LOS041
    return z @ z.T
""",
}
LINT_CORRECT = {
    "a cross-correlation": "import torch.nn.functional as F\nz = F.normalize(x, dim=0)\nc = z.T @ z\n",
    "another dimension": "import torch.nn.functional as F\nz = F.normalize(x, dim=1)\nc = z @ z.T\n",
    "one side": "import torch.nn.functional as F\nw = F.normalize(x, dim=0)\nc = F.normalize(z, dim=1) @ w.T\n",
}


def repeated(script: str) -> str:
    return HEAD + script.rstrip("\n") + ("\n    optimizer.step()\n" if "backward" in script else TAIL)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_normalised_columns(run_reports, script):
    run_reports(repeated(script))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_programs(run_is_clean, script):
    run_is_clean(repeated(script))


@pytest.mark.parametrize("script", LINTED.values(), ids=LINTED)
def test_lint_reports_products_of_rows(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(script, "LOS041")
