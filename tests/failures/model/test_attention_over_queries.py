"""MDL020: attention weights that do not add up to 1 over the keys."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

x = torch.randn(64, 6, 8)
y = x[:, 0, :3].argmax(1)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.slots = nn.Parameter(torch.randn(4, 8))
        self.out = nn.Linear(8, 3)
        self.drop = nn.Dropout(0.1)


def heads(x):
    return x.view(len(x), x.shape[1], 2, 4).transpose(1, 2)

"""

TAIL = """

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""

FAULTY = {
    "queries": """
class Net(Base):
    def forward(self, x):
        scores = torch.bmm(self.q(x), self.k(x).permute(0, 2, 1)) / 8**0.5
        return self.out(torch.bmm(F.softmax(scores, dim=1), self.v(x))[:, 0])  # <- MDL020
""",
    "heads, with a mask and dropout": """
class Net(Base):
    def forward(self, x):
        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        scores = (q @ k.transpose(-2, -1) / 2).masked_fill(torch.ones(6, 6).triu(1) == 1, -1e9)
        weights = self.drop(scores.softmax(dim=1))  # <- MDL020
        return self.out((weights @ v).transpose(1, 2).reshape(len(x), 6, 8)[:, -1])
""",
    "the only head": """
class Net(Base):
    def forward(self, x):
        q, k, v = (each(x)[:, None] for each in (self.q, self.k, self.v))
        weights = F.softmax(q @ k.transpose(-2, -1) / 3, dim=1)  # <- MDL020
        return self.out((weights @ v)[:, 0, 0])
""",
    "einsum with heads last": """
class Net(Base):
    def forward(self, x):
        q, k, v = (each(x).view(len(x), 6, 2, 4) for each in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bqkh", q, k)
        weights = torch.softmax(scores, dim=-1)  # <- MDL020
        return self.out(torch.einsum("bqkh,bkhd->bqhd", weights, v).reshape(len(x), 6, 8)[:, 0])
""",
    "a module, and other numbers of queries and keys": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.softmax = nn.Softmax(dim=-2)  # <- MDL020

    def forward(self, x):
        scores = self.q(x[:, :2]).matmul(self.k(x).transpose(1, 2)) + torch.randn(2, 6)
        return self.out(torch.matmul(self.softmax(scores), self.v(x)).mean(1))
""",
}

ADDITIVE = {
    "a softmax over the only score of each position": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x):
        weights = F.softmax(torch.tanh(self.score(x)), dim=-1)  # <- MDL020
        return self.out((weights * self.v(x)).sum(1))
""",
}

POOLING = """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x):
        %s
"""
ADDITIVE |= {
    "a softmax over the batch": POOLING
    % """weights = torch.softmax(torch.tanh(self.score(x)), dim=0)  # <- MDL020
        return self.out((weights * self.v(x)).sum(1))""",
    "a softmax over the batch, of squeezed scores": POOLING
    % """weights = F.softmax(self.score(x).squeeze(-1), dim=0)  # <- MDL020
        return self.out((weights.unsqueeze(-1) * x).sum(dim=1))""",
    "a softmax over the batch, and a product of matrices": POOLING
    % """weights = F.softmax(self.score(x), dim=0)  # <- MDL020
        return self.out(torch.bmm(weights.transpose(1, 2), self.v(x)).squeeze(1))""",
    "a softmax over the batch, with the positions first": POOLING
    % """x = x.transpose(0, 1)
        energy = torch.tanh(self.score(x)).squeeze(2)
        weights = F.softmax(energy, dim=1)  # <- MDL020
        return self.out((weights.unsqueeze(2) * self.v(x)).sum(0))""",
    "a softmax over the batch in the second of three dimensions": POOLING
    % """x = x.transpose(0, 1)
        weights = torch.softmax(self.score(x), dim=1)  # <- MDL020
        return self.out(torch.sum(weights * x, dim=0))""",
}

ADDITIVE_CORRECT = {
    "a product of matrices over the positions": POOLING
    % """weights = F.softmax(self.score(x).squeeze(2), dim=1)
        return self.out(torch.bmm(weights.unsqueeze(1), self.v(x)).squeeze(1))""",
    "features that are added up over the samples": POOLING
    % """weights = F.softmax(self.score(x).squeeze(2), dim=1)
        pooled = (weights.unsqueeze(2) * self.v(x)).sum(1)
        return self.out(pooled - pooled.sum(0) / len(x))""",
    "the mean attention to each position": POOLING
    % """weights = F.softmax(self.score(x).squeeze(2), dim=1)
        return self.out(self.v(x).mean(1)) + weights.sum(0)[:3] / len(x)""",
    "positions in the first dimension": POOLING
    % """x = x.transpose(0, 1)
        weights = F.softmax(self.score(x), dim=0)
        return self.out((weights * self.v(x)).sum(0))""",
    "samples weighted among each other": POOLING
    % """weights = F.softmax(self.score(x).mean(1), dim=0)
        return self.out(self.v(x).mean(1)) * weights * len(x)""",
    "importance of the samples, averaged over positions": POOLING
    % """weights = F.softmax(self.score(x), dim=0)
        return self.out(self.v(x).mean(1)) * weights.mean(1)""",
    "a softmax over the positions": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x):
        weights = F.softmax(self.score(x), dim=1)
        return self.out((weights * self.v(x)).sum(1))
""",
}

CORRECT = {
    "keys": """
class Net(Base):
    def forward(self, x):
        weights = F.softmax(torch.bmm(self.q(x), self.k(x).permute(0, 2, 1)), dim=2)
        return self.out(torch.bmm(self.drop(weights), self.v(x))[:, 0])
""",
    "slot attention: normalised again over the inputs": """
class Net(Base):
    def forward(self, x):
        slots = self.q(self.slots).expand(len(x), 4, 8)
        weights = torch.softmax(slots @ self.k(x).transpose(1, 2), dim=1) + 1e-8
        weights = weights / weights.sum(-1, keepdim=True)
        return self.out((weights @ self.v(x)).mean(1))
""",
    "the sum is divided by the weights": """
class Net(Base):
    def forward(self, x):
        weights = torch.softmax(self.q(x[:, :3]) @ self.k(x).transpose(1, 2), dim=1)
        return self.out(((weights @ self.v(x)) / weights.sum(-1, keepdim=True)).mean(1))
""",
    "co-attention": """
class Net(Base):
    def forward(self, x):
        a, b = self.q(x[:, :2]), self.k(x[:, 2:])
        scores = a @ b.transpose(1, 2)
        first = torch.softmax(scores, dim=2) @ b
        second = torch.softmax(scores, dim=1).transpose(1, 2) @ a
        return self.out(first.mean(1) + second.mean(1))
""",
    "clusters that are parameters": """
class Net(Base):
    def forward(self, x):
        assignment = torch.softmax(self.k(x) @ self.slots.t(), dim=-1)
        return self.out((assignment.transpose(1, 2) @ self.v(x)).mean(1))
""",
    "linear attention": """
class Net(Base):
    def forward(self, x):
        q, k = self.q(x).softmax(dim=-1), self.k(x).softmax(dim=1)
        return self.out((q @ (k.transpose(1, 2) @ self.v(x)))[:, 0])
""",
    "keys in the second dimension, summed by einsum": """
class Net(Base):
    def forward(self, x):
        scores = torch.einsum("bqd,bkd->bkq", self.q(x), self.k(x))
        return self.out(torch.einsum("bkq,bkd->bqd", scores.softmax(dim=1), self.v(x))[:, 0])
""",
    "values on the left": """
class Net(Base):
    def forward(self, x):
        f, g, h = (each(x).transpose(1, 2) for each in (self.q, self.k, self.v))
        return self.out(torch.bmm(h, torch.bmm(f.transpose(1, 2), g).softmax(dim=1)).mean(2))
""",
    "built-in attention": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.out(self.attention(x, x, x)[0].mean(1))
""",
}


FAULTY_ALL, CORRECT_ALL = FAULTY | ADDITIVE, CORRECT | ADDITIVE_CORRECT
LINTED = ("queries", "heads, with a mask and dropout")


@pytest.mark.parametrize("script", [FAULTY["queries"], FAULTY["heads, with a mask and dropout"]], ids=LINTED)
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script.replace("transpose(-2, -1)", "transpose(2, 3)") + TAIL, fixes=True)


@pytest.mark.parametrize("script", FAULTY_ALL.values(), ids=FAULTY_ALL.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script + TAIL)


@pytest.mark.parametrize("script", CORRECT_ALL.values(), ids=CORRECT_ALL.keys())
def test_accepts_correct_scripts(run_is_clean, lint_is_clean, script):
    lint_is_clean(HEAD + script + TAIL)
    run_is_clean(HEAD + script + TAIL)


EINSUM = """
import torch
from torch import nn
class Reader(nn.Module):
    def forward(self, cards, questions):
        keys, values, asks = self.k(cards), self.v(cards), self.q(questions)
        affinity = torch.einsum("bqd,bkd->bkq", asks, keys) * self.scale
        share = affinity.softmax(dim=-1)  # <- MDL020
        return self.decode(torch.einsum("bkq,bkd->bqd", share, values))
"""


def test_lint_reports_the_letter_that_an_einsum_does_not_sum_over(lint_reports):
    lint_reports(EINSUM)
    lint_reports(EINSUM.replace("affinity.softmax(dim=-1)", "self.drop(torch.softmax(affinity, 2))"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("affinity.softmax(dim=-1)", "affinity.softmax(dim=1)"),
        ("affinity.softmax(dim=-1)", "affinity.softmax(dim=-1)\n        share = share / share.sum(1, keepdim=True)"),
        ("asks, keys)", "self.centres, keys)"),
        ('einsum("bqd,bkd->bkq", asks, keys)', "linear(cards)"),
    ],
    ids=["over the keys", "slot attention", "clusters", "assignments"],
)
def test_lint_accepts_other_products(lint_is_clean, old: str, new: str):
    lint_is_clean(EINSUM.replace(old, new), "MDL020")


# Attention pooling in the text ------------------------------------------------------------------------------------

POOLED = {
    **ADDITIVE,
    "weights of another module": """
class Weights(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.value, self.gate, self.one = nn.Linear(width, 4), nn.Linear(width, 4), nn.Linear(4, 1)

    def forward(self, h):
        hidden = torch.tanh(self.value(h)) * torch.sigmoid(self.gate(h))
        return self.one(hidden).softmax(0)  # <- MDL020


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.pool, self.head = nn.Linear(8, 8), Weights(8), nn.Linear(8, 3)

    def forward(self, bags):
        h = self.embed(bags).relu()
        a = self.pool(h)
        weighted = torch.mul(h, a)
        return self.head(torch.sum(weighted, dim=1))
""",
    "a softmax layer at the end of the scores": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1), nn.Softmax(dim=0))  # <- MDL020
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head((self.scores(tokens) * tokens).sum(1))
""",
    "a softmax layer of its own, over the only score": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.score, self.normalise, self.head = nn.Linear(8, 1), nn.Softmax(dim=2), nn.Linear(8, 3)  # <- MDL020

    def forward(self, x):
        states, _ = self.rnn(x)
        alpha = self.normalise(self.score(states))
        context = alpha * states
        return self.head(context.sum(dim=1))
""",
    "scores without their last dimension": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.head, self.drop = nn.Linear(8, 1), nn.Linear(8, 3), nn.Dropout(0.1)

    def forward(self, x):
        energy = self.score(x).squeeze(2)
        alpha = self.drop(torch.softmax(energy, dim=0))  # <- MDL020
        return self.head(torch.bmm(alpha.unsqueeze(1), x).squeeze(1))
""",
}

POOLED_FINE = {
    "weights of views, of the mean over all samples": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.project = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1, bias=False))

    def forward(self, x):
        views = torch.stack([self.q(x), self.v(x)], dim=1)
        weights = torch.softmax(self.project(views).mean(dim=0), dim=0)
        weights = weights.expand((views.shape[0],) + weights.shape)
        return self.out((weights * views).sum(dim=1))
""",
    **ADDITIVE_CORRECT,
    "clusters that add up the samples": POOLING
    % """assigned = F.softmax(self.v(x).mean(1), dim=1)
        sums = (assigned.unsqueeze(2) * self.q(x).mean(1).unsqueeze(1)).sum(0)
        return self.out(self.v(x).mean(1) + assigned @ sums)""",
    "one bag at a time": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)

    def bag(self, h):
        weights = torch.softmax(self.score(h), dim=0)
        return (weights * h).sum(dim=0)

    def forward(self, x):
        return self.out(torch.stack([self.bag(each) for each in x]))
""",
    "learned weights of the positions": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(6, 1))

    def forward(self, x):
        weights = torch.softmax(self.alpha, dim=0)
        return self.out((weights * x).sum(1))
""",
    "clusters that add up the positions": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.assign = nn.Linear(8, 4)

    def forward(self, x):
        weights = self.assign(x).softmax(dim=-1)
        clusters = (weights.unsqueeze(-1) * x.unsqueeze(2)).sum(dim=1)
        return self.out(clusters.mean(1))
""",
    "experts that are mixed": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.experts, self.gate = nn.ModuleList(nn.Linear(8, 3) for _ in range(4)), nn.Linear(8, 4)

    def forward(self, x):
        x = x.mean(1)
        gates = F.softmax(self.gate(x), dim=-1)
        answers = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (gates[..., None] * answers).sum(dim=1)
""",
    "normalised again": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x):
        weights = torch.softmax(self.score(x), dim=0)
        weights = weights / weights.sum(dim=1, keepdim=True)
        return self.out((weights * x).sum(1))
""",
    "several scores for each position": """
class Net(Base):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 8)

    def forward(self, x):
        weights = torch.softmax(self.score(x), dim=-1)
        return self.out((weights * x).sum(1))
""",
}


@pytest.mark.parametrize("script", POOLED.values(), ids=POOLED)
def test_lint_reports_pooling(lint_reports, script):
    lint_reports(HEAD + script + TAIL)


@pytest.mark.parametrize("script", POOLED_FINE.values(), ids=POOLED_FINE)
def test_lint_accepts_other_pooling(lint_is_clean, script):
    lint_is_clean(HEAD + script + TAIL)
