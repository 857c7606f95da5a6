"""Fixtures that run one proof of a model, and small models and data to prove properties of."""

import pytest
import torch
from torch import nn

from trueloop.verification.discover import find_proof
from trueloop.verification.evidence import Verdict
from trueloop.verification.proof import run_proof
from trueloop.verification.proof_context import ProofContext
from trueloop.verification.proof_target import ProofTarget


@pytest.fixture
def prove():
    """Return `prove(name, model=..., options={...})`, which returns the evidence of one proof."""

    def run(name, *, options=None, **target):
        return run_proof(find_proof(name), ProofContext(ProofTarget(**target)), options)

    return run


@pytest.fixture
def holds(prove):
    """Run a proof like `prove`; the property must hold."""

    def check(name, **target):
        evidence = prove(name, **target)
        assert evidence.verdict is Verdict.HOLDS, evidence
        return evidence

    return check


@pytest.fixture
def broken(prove):
    """Run a proof like `prove`; the property must be broken, and the evidence must name a cause and a fix."""

    def check(name, **target):
        evidence = prove(name, **target)
        assert evidence.verdict is Verdict.BROKEN, evidence
        assert evidence.cause
        assert evidence.fix
        return evidence

    return check


@pytest.fixture
def not_applicable(prove):
    """Run a proof like `prove`; the property must not apply."""

    def check(name, **target):
        evidence = prove(name, **target)
        assert evidence.verdict is Verdict.NOT_APPLICABLE, evidence
        return evidence

    return check


@pytest.fixture
def classes():
    """A batch of 16 samples of 8 numbers, and the class of each sample, from 0 to 2."""
    torch.manual_seed(3)
    x = torch.randn(16, 8)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


@pytest.fixture
def net():
    """Create a small network for `classes`."""

    def make(*, norm=None, dropout=0.0):
        torch.manual_seed(0)
        middle = [norm] if norm is not None else []
        return nn.Sequential(nn.Linear(8, 16), *middle, nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3))

    return make


class Decoder(nn.Module):
    """A language model with one layer of self-attention, with or without a causal mask."""

    def __init__(self, *, is_causal=True, diagonal=0, tied=True):
        super().__init__()
        torch.manual_seed(1)
        self.tokens = nn.Embedding(11, 8)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        self.is_causal, self.diagonal = is_causal, diagonal

    def forward(self, ids):
        h = self.norm(self.tokens(ids))
        scores = self.query(h) @ self.key(h).transpose(1, 2)
        if self.is_causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + self.diagonal)
            scores = scores.masked_fill(ahead, float("-inf"))
        return self.head(h + scores.softmax(-1) @ self.value(h))


@pytest.fixture
def decoder():
    """The class `Decoder`."""
    return Decoder


@pytest.fixture
def tokens():
    """Six sequences of 7 tokens, and the same sequences shifted by one token."""
    torch.manual_seed(5)
    ids = torch.randint(0, 11, (6, 8))
    return ids[:, :-1].clone(), ids[:, 1:].clone()


def next_token_loss(model, batch):
    ids, targets = batch
    return nn.functional.cross_entropy(model(ids).transpose(1, 2), targets)


@pytest.fixture
def token_loss():
    """Return the cross-entropy of the next token as a function of model and batch."""
    return next_token_loss
