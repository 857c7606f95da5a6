"""Models that mix samples in several ways, and similar models that do not."""

import pytest
import torch
from torch import nn

NAME = "samples-independent"


class Transposed(nn.Module):
    """Mixes the batch with the features by a view with dimensions in the wrong order."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x.t().reshape(x.shape))


class AttentionOverBatch(nn.Module):
    """Attention over the batch dimension, because batch_first=True is missing."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0])


class Centred(nn.Module):
    """Subtracts the mean over the batch."""

    def __init__(self, *, only_training=False):
        super().__init__()
        self.head, self.only_training = nn.Linear(8, 3), only_training

    def forward(self, x):
        return self.head(x if self.only_training and not self.training else x - x.mean(0))


@pytest.mark.parametrize("model", [Transposed, AttentionOverBatch, Centred])
def test_a_leak_is_found(broken, classes, model):
    evidence = broken(NAME, model=model(), loss=nn.CrossEntropyLoss(), batch=classes)
    assert "in eval mode" in evidence.message
    assert evidence.numbers["leaking_pairs"] > 0


def test_the_module_at_fault_is_named(broken, classes):
    inside = broken(NAME, model=AttentionOverBatch(), loss=nn.CrossEntropyLoss(), batch=classes)
    assert "attention" in inside.cause
    before = broken(NAME, model=Transposed(), loss=nn.CrossEntropyLoss(), batch=classes)
    assert before.cause == "in the forward of Transposed, before head (Linear)"


def test_a_leak_in_train_mode_only_is_found(broken, classes):
    evidence = broken(NAME, model=Centred(only_training=True), loss=nn.CrossEntropyLoss(), batch=classes)
    assert "in train mode only" in evidence.message


def test_batchnorm_in_train_mode_is_told_as_what_it_is(holds, classes, net):
    evidence = holds(NAME, model=net(norm=nn.BatchNorm1d(16)), loss=nn.CrossEntropyLoss(), batch=classes)
    assert "BatchNorm" in evidence.notes[0]
    assert "(1)" in evidence.notes[0]


def test_batchnorm_without_running_statistics_leaks_when_it_is_used(broken, classes, net):
    norm = nn.BatchNorm1d(16, track_running_stats=False)
    evidence = broken(NAME, model=net(norm=norm), loss=nn.CrossEntropyLoss(), batch=classes)
    assert evidence.cause == "in 1 (BatchNorm1d)"


@pytest.mark.parametrize("norm", [None, nn.LayerNorm(16), nn.GroupNorm(4, 16)])
def test_what_stays_within_a_sample_is_quiet(holds, classes, net, norm):
    evidence = holds(NAME, model=net(norm=norm, dropout=0.5), loss=nn.CrossEntropyLoss(), batch=classes)
    assert not evidence.notes
    grid = evidence.charts[0].values
    assert all((grid[i][j] > 0) == (i == j) for i in range(6) for j in range(6))


def test_tokens_are_changed_where_there_are_no_gradients(holds, broken, decoder, tokens, token_loss):
    holds(NAME, model=decoder(), loss=token_loss, batch=tokens)

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = decoder()

        def forward(self, ids):
            return self.inner(ids.roll(1, 0))

    assert "before inner" in broken(NAME, model=Mixed(), loss=token_loss, batch=tokens).message


def test_a_leak_through_gradients_only_is_found(broken, classes):
    class Passed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad.mean(0, keepdim=True).expand_as(grad)

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(Passed.apply(x))

    broken(NAME, model=Mean(), loss=nn.CrossEntropyLoss(), batch=classes)


def test_one_sample_cannot_leak(not_applicable, net, classes):
    assert "has 1 samples, but this proof needs 2" in not_applicable(NAME, model=net(), batch=classes[0][:1]).message


def test_an_output_without_rows_does_not_apply(not_applicable, classes):
    class Total(nn.Linear):
        def forward(self, x):
            return super().forward(x).sum()

    assert "row per sample" in not_applicable(NAME, model=Total(8, 3), batch=classes[0]).message


def test_a_state_that_goes_on_with_every_call_is_no_leak(holds, classes):
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16))
    model = nn.Sequential(normed, nn.ReLU(), nn.Linear(16, 3))
    holds(NAME, model=model, loss=nn.CrossEntropyLoss(), batch=classes)


def test_time_that_comes_first_is_no_leak(not_applicable, holds):
    torch.manual_seed(0)

    class Series(nn.Module):
        def __init__(self, *, first):
            super().__init__()
            self.rnn, self.first = nn.GRU(4, 5, batch_first=first), first

        def forward(self, x):
            return self.rnn(x)[0]

    for length in (6, 9):  # as many positions as samples, and more
        batch = torch.randn(6, length, 4)
        reason = not_applicable(
            NAME, model=Series(first=False), loss=lambda m, x: m(x.transpose(0, 1)).square().mean(), batch=batch
        )
        assert "its rows are not samples" in reason.message
        holds(NAME, model=Series(first=True), loss=lambda m, x: m(x).square().mean(), batch=batch)
