"""Loaders that are fast enough, and loaders that are not, measured with a fake clock."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trueloop.verification.discover import find_proof
from trueloop.verification.proof import run_proof
from trueloop.verification.proof_context import ProofContext
from trueloop.verification.proof_target import ProofTarget


class Clock:
    """A fake clock, which the test advances."""

    now = 0.0

    def __call__(self):
        return self.now


class Timed(Dataset):
    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def __len__(self):
        return 64

    def __getitem__(self, index):
        self.clock.now += self.seconds
        return torch.ones(4) * index, torch.tensor(0)


@pytest.fixture
def timed():
    def prove(*, sample_s, update_s, size=8):
        clock = Clock()

        def step(model, optimizer, batches):
            clock.now += update_s
            optimizer.step()

        loader = DataLoader(Timed(clock, sample_s), batch_size=size)
        subject = ProofTarget(model=nn.Linear(4, 2), loss=nn.CrossEntropyLoss(), loader=loader, step=step)
        return run_proof(find_proof("loader-keeps-up"), ProofContext(subject, clock=clock))

    return prove


def test_a_fast_loader_holds(timed):
    evidence = timed(sample_s=0.001, update_s=0.1)
    assert evidence.verdict == "holds"
    assert evidence.numbers["loader"] == pytest.approx(1000)
    assert evidence.numbers["updates"] == pytest.approx(80)
    assert evidence.numbers["waiting"] == pytest.approx(0.008 / 0.108)


def test_a_slow_loader_is_found(timed):
    evidence = timed(sample_s=0.02, update_s=0.1)
    assert evidence.verdict == "broken"
    assert evidence.cause == "the loader"
    assert evidence.numbers["waiting"] == pytest.approx(0.16 / 0.26)


def test_a_slow_loader_beside_a_slower_model_holds(timed):
    assert timed(sample_s=0.02, update_s=1.0).verdict == "holds"


def test_a_list_of_batches_does_not_apply(not_applicable, classes, net):
    not_applicable("loader-keeps-up", model=net(), loss=nn.CrossEntropyLoss(), loader=[classes])


def test_one_batch_cannot_be_timed(timed):
    assert timed(sample_s=0.001, update_s=0.1, size=64).verdict == "not applicable"


def test_a_small_model_that_waits_for_a_quick_loader_is_no_alarm(timed):
    evidence = timed(sample_s=0.0005, update_s=0.004)
    assert evidence.verdict == "holds"
    assert evidence.numbers["waiting"] == pytest.approx(0.5)
    assert evidence.notes
