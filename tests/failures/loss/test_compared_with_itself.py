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


IMPORTS = """
import torch
import torch.nn as nn
import torch.nn.functional as F
"""
LINT_FAULTY = {
    "a function of two views": """
def nt_xent(first, second, temperature):
    both = F.normalize(torch.cat([first, second]), dim=1)
    scores = both @ both.T / temperature  # <- LOS017
    partners = torch.cat([torch.arange(len(first), 2 * len(first)), torch.arange(len(first))])
    return F.cross_entropy(scores, partners)
""",
    "a module with a cosine similarity": """
class Contrast(nn.Module):
    def __init__(self, tau):
        super().__init__()
        self.tau, self.similarity = tau, nn.CosineSimilarity(dim=2)
        self.criterion = nn.CrossEntropyLoss(reduction="sum")
    def forward(self, u, v):
        rows = torch.cat((u, v), dim=0)
        table = self.similarity(rows.unsqueeze(1), rows.unsqueeze(0)) / self.tau  # <- LOS017
        wanted = torch.arange(len(rows), device=u.device)
        wanted = (wanted + len(u)) % len(rows)
        return self.criterion(table, wanted) / len(rows)
""",
    "a sum of exponentials": """
def loss(u, v, tau=0.1):
    n = len(u)
    out = F.normalize(torch.cat([u, v], dim=0), dim=-1)
    table = torch.exp(torch.mm(out, out.t().contiguous()) / tau)  # <- LOS017
    denominator = table.sum(dim=-1)
    positive = torch.exp((out[:n] * out[n:]).sum(-1) / tau)
    positive = torch.cat([positive, positive])
    return -torch.log(positive / denominator).mean()
""",
    "a helper that makes the matrix": """
def all_pairs(h):
    h = h / h.norm(dim=1, keepdim=True)
    return torch.einsum("id,jd->ij", h, h)  # <- LOS017
def loss(u, v, scale):
    logits = all_pairs(torch.cat([u, v])) * scale
    logits = logits - logits.max(dim=1, keepdim=True).values.detach()
    other = torch.arange(len(logits)).roll(len(u))
    return F.nll_loss(F.log_softmax(logits, dim=1), other)
""",
    "logsumexp": """
def loss(u, v):
    h = torch.cat([u, v])
    s = torch.matmul(h, h.transpose(0, 1)) / 0.5  # <- LOS017
    good = s[torch.arange(len(h)), torch.arange(len(h)).roll(len(u))]
    return (torch.logsumexp(s, dim=1) - good).mean()
""",
    "a loop over pairs": """
def loss(u, v):
    h = F.normalize(torch.cat([u, v]))
    s, m = h @ h.T, len(h)  # <- LOS017
    total = 0
    for i in range(m):
        below = sum(torch.exp(s[i, j] / 0.5) for j in range(m))
        total = total - torch.log(torch.exp(s[i, (i + m // 2) % m] / 0.5) / below)
    return total / m
""",
    "positives next to each other": """
def loss(pairs):
    h = F.normalize(pairs.flatten(0, 1), dim=1)
    wanted = torch.arange(len(h))
    wanted[0::2] += 1
    wanted[1::2] -= 1
    return F.cross_entropy(h @ h.t() / 0.1, wanted)  # <- LOS017
""",
}
LINT_CORRECT = {
    "two sets, as in CLIP": """
def loss(images, texts, scale):
    logits = scale.exp() * images @ texts.t()
    labels = torch.arange(len(images))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
""",
    "a diagonal filled in place": """
def loss(u, v):
    h = torch.cat([u, v])
    s = h @ h.t() / 0.1
    s.fill_diagonal_(float("-inf"))
    return F.cross_entropy(s, torch.arange(len(h)).roll(len(u)))
""",
    "a diagonal set by index, and by a function": """
def hide(scores):
    scores[range(len(scores)), range(len(scores))] = -1e9
def loss(u, v):
    h = torch.cat([u, v])
    s = h @ h.t() / 0.1
    hide(s)
    return F.cross_entropy(s, torch.arange(len(h)).roll(len(u)))
""",
    "minus a large identity": """
def loss(u, v):
    h = torch.cat([u, v])
    s = h @ h.t() / 0.1 - 1e9 * torch.eye(len(h))
    return F.cross_entropy(s, torch.arange(len(h)).roll(len(u)))
""",
    "supervised, with masks": """
def loss(features, labels, tau):
    contrast = torch.cat(torch.unbind(features, dim=1), dim=0)
    logits = torch.div(torch.matmul(contrast, contrast.T), tau)
    logits = logits - logits.max(dim=1, keepdim=True)[0].detach()
    mask = torch.eq(labels, labels.T).float().repeat(2, 2)
    others = torch.scatter(torch.ones_like(mask), 1, torch.arange(len(contrast)).view(-1, 1), 0)
    mask = mask * others
    exp_logits = torch.exp(logits) * others
    log_prob = logits - torch.log(exp_logits.sum(1, keepdim=True))
    return -((mask * log_prob).sum(1) / mask.sum(1)).mean()
""",
    "the own term subtracted": """
def loss(u, v, tau):
    h = F.normalize(torch.cat([u, v]), dim=1)
    s = torch.exp(h @ h.t() / tau)
    below = s.sum(dim=1) - torch.exp(torch.tensor(1 / tau))
    good = torch.exp((u * v).sum(1) / tau)
    return -torch.log(torch.cat([good, good]) / below).mean()
""",
    "negatives by index": """
def loss(u, v, tau):
    h = F.normalize(torch.cat([u, v]), dim=1)
    s = h @ h.t() / tau
    keep = ~torch.eye(len(h), dtype=torch.bool)
    s = s[keep].view(len(h), -1)
    return F.cross_entropy(s, torch.zeros(len(h), dtype=torch.long))
""",
    "a queue of negatives": """
def loss(q, k, queue, tau):
    good = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
    bad = torch.einsum("nc,ck->nk", q, queue.clone().detach())
    logits = torch.cat([good, bad], dim=1) / tau
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
""",
    "an entropy of joined embeddings": """
def spread(u, v):
    h = F.normalize(torch.cat([u, v]), dim=1)
    return torch.exp(h @ h.t()).sum(1).log().mean()
""",
    "a loop over other samples": """
def loss(u, v):
    h = F.normalize(torch.cat([u, v]))
    s, m = h @ h.T, len(h)
    total = 0
    for i in range(m):
        below = sum(torch.exp(s[i, j] / 0.5) for j in range(m) if j != i)
        total = total - torch.log(torch.exp(s[i, (i + m // 2) % m] / 0.5) / below)
    return total / m
""",
    "self-attention": """
def attend(h, labels, head):
    weights = torch.softmax(h @ h.transpose(0, 1) / 8, dim=-1)
    return F.cross_entropy(head(weights @ h), labels)
""",
}


@pytest.mark.parametrize("script", LINT_FAULTY.values(), ids=LINT_FAULTY.keys())
def test_lint_reports_faulty_programs(lint_reports, script):
    lint_reports(IMPORTS + script)


@pytest.mark.parametrize("script", LINT_CORRECT.values(), ids=LINT_CORRECT.keys())
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(IMPORTS + script)
