"""LOS017: a contrastive loss with the similarity of each sample to itself."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 8)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
n, t = 16, 0.5
positives = torch.arange(2 * n).roll(n)
own = torch.eye(2 * n, dtype=torch.bool)
for rows in torch.randperm(64).split(n):
    optimizer.zero_grad()
    a = F.normalize(model(x[rows] + 0.1 * torch.randn(n, 8)), dim=1)
    b = F.normalize(model(x[rows] + 0.1 * torch.randn(n, 8)), dim=1)
    z = torch.cat([a, b])
    s = z @ z.t() / t
"""

TAIL = """
    loss.backward()
    optimizer.step()
"""

FAULTY = {
    "cosine similarity and cross-entropy": """
    s = F.cosine_similarity(z.unsqueeze(1), z.unsqueeze(0), dim=2) / t
    loss = nn.CrossEntropyLoss()(s, positives)  # <- LOS017
""",
    "sum of exponentials": """
    e = torch.exp(s)  # <- LOS017
    loss = -torch.log(e[torch.arange(2 * n), positives] / e.sum(dim=1)).mean()
""",
    "logsumexp": """
    loss = (torch.logsumexp(s, dim=1) - s.gather(1, positives.unsqueeze(1)).squeeze(1)).mean()  # <- LOS017
""",
}

CORRECT = {
    "masked before the softmax": """
    loss = F.cross_entropy(s.masked_fill(own, -1e9), positives)
""",
    "diagonal removed": """
    s = s[~own].view(2 * n, 2 * n - 1)
    loss = F.cross_entropy(s, positives - (positives > torch.arange(2 * n)).long())
""",
    "two views": """
    loss = F.cross_entropy(a @ b.t() / t, torch.arange(n))
""",
    "exponentials, masked": """
    e = torch.exp(s) * (~own)
    loss = -torch.log(e[torch.arange(2 * n), positives] / e.sum(dim=1)).mean()
""",
    "the own term is subtracted": """
    e = torch.exp(s)
    loss = -torch.log(e[torch.arange(2 * n), positives] / (e.sum(dim=1) - e.diagonal())).mean()
""",
    "an entropy, without positives": """
    loss = torch.logsumexp(s, dim=1).mean()
""",
    "the positive is in the other half, with negatives of both kinds": """
    e, between = torch.exp(a @ a.t() / t), torch.exp(a @ b.t() / t)
    loss = -torch.log(between.diag() / (e.sum(1) + between.sum(1) - e.diag())).mean()
""",
    "a square matrix of class scores": """
    loss = F.cross_entropy(model(x[rows]), torch.arange(n) % 3)
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script.strip("\n") + TAIL)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script.strip("\n") + TAIL)
