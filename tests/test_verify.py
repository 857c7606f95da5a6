"""`trueloop.verify`: a function for each proof, one for all proofs, and suggestions for misspelt names."""

import pytest
import torch
from torch import nn

import trueloop
from trueloop.core.errors import InvalidConfig


@pytest.fixture
def batch():
    torch.manual_seed(3)
    x = torch.randn(16, 8)
    return x, (x[:, 0] > 0).long()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def test_a_proof_is_a_function_of_model_loss_and_batch(model, batch):
    evidence = trueloop.verify.overfits_one_batch(model, nn.CrossEntropyLoss(), batch, updates=400, share=0.5)
    assert evidence
    assert evidence.numbers["updates"] < 400
    assert evidence.proof == "overfits-one-batch"


def test_what_is_broken_fails_an_assertion(batch):
    class Mixed(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    with pytest.raises(AssertionError, match="samples-independent: broken"):
        assert trueloop.verify.samples_independent(Mixed(8, 2), batch=batch[0])


def test_a_subject_goes_too(model, batch):
    subject = trueloop.verify.ProofTarget(model=model, loss=nn.CrossEntropyLoss(), batch=batch)
    assert trueloop.verify.input_used(subject)


def test_all_at_once(model, batch):
    started, ended = [], []
    evidence = trueloop.verify.prove(
        {"model": model, "loss": nn.CrossEntropyLoss(), "batch": batch},
        select=["model"],
        ignore=["input-used"],
        on_start=started.append,
        on_end=ended.append,
    )
    assert [each.proof for each in evidence] == [proof.name for proof in started] == [each.proof for each in ended]
    assert "input-used" not in {each.proof for each in evidence}
    assert all(each.ok for each in evidence)


def test_every_name_has_its_help():
    assert set(trueloop.verify.names()) <= set(dir(trueloop.verify))
    for name in trueloop.verify.names():
        assert getattr(trueloop.verify, name).__doc__


def test_misspelt_words_get_the_nearest(model):
    with pytest.raises(InvalidConfig, match="Did you mean 'overfits-one-batch'"):
        trueloop.verify.overfit_one_batch(model)
    with pytest.raises(InvalidConfig, match="Did you mean 'optimizer'"):
        trueloop.verify.input_used(model, optimiser=None)
    with pytest.raises(InvalidConfig, match="Did you mean 'updates'"):
        trueloop.verify.overfits_one_batch(model, update=3)
    assert not hasattr(trueloop.verify, "__wrapped__")
