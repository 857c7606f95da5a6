"""Models whose outputs depend on later positions, and models whose outputs do not."""

import torch
from torch import nn

NAME = "future-unseen"


class Convolved(nn.Module):
    """A convolution with padding on the left (causal) or on both sides."""

    def __init__(self, *, causal):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.conv, self.causal = nn.Embedding(11, 8), nn.Conv1d(8, 11, 3), causal

    def forward(self, ids):
        h = self.tokens(ids).transpose(1, 2)
        return self.conv(nn.functional.pad(h, (2, 0) if self.causal else (1, 1))).transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self, *, bidirectional):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(11, 8)
        self.rnn = nn.GRU(8, 8, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(16 if bidirectional else 8, 11)

    def forward(self, ids):
        return self.head(self.rnn(self.tokens(ids))[0])


def test_a_masked_decoder_holds(holds, decoder, tokens, token_loss):
    evidence = holds(NAME, model=decoder(), loss=token_loss, batch=tokens)
    grid = evidence.charts[0].values
    assert all(value == 0 for t, row in enumerate(grid) for s, value in enumerate(row) if s > t)
    assert all(grid[t][t] > 0 for t in range(7))


def test_a_decoder_without_a_mask_is_found(broken, decoder, tokens, token_loss):
    evidence = broken(NAME, model=decoder(is_causal=False), loss=token_loss, batch=tokens)
    assert "position 0 changes with the input at position 1" in evidence.message


def test_a_mask_that_is_one_too_wide_is_found(broken, decoder, tokens, token_loss):
    evidence = broken(NAME, model=decoder(diagonal=1), loss=token_loss, batch=tokens)
    assert evidence.numbers["pairs_ahead"] == 6  # each of 7 positions but the last depends on the next one


def test_convolutions(holds, broken, tokens, token_loss):
    holds(NAME, model=Convolved(causal=True), loss=token_loss, batch=tokens)
    assert broken(NAME, model=Convolved(causal=False), loss=token_loss, batch=tokens).cause


def test_recurrent_layers(holds, broken, tokens, token_loss):
    holds(NAME, model=Recurrent(bidirectional=False), loss=token_loss, batch=tokens)
    evidence = broken(NAME, model=Recurrent(bidirectional=True), loss=token_loss, batch=tokens)
    assert evidence.cause == "in rnn (GRU)"


def test_a_mask_that_is_left_out_in_training_is_found(broken, decoder, tokens, token_loss):
    class Careless(decoder):
        def forward(self, ids):
            self.is_causal = not self.training
            return super().forward(ids)

    assert "in train mode only" in broken(NAME, model=Careless(), loss=token_loss, batch=tokens).message


def test_a_model_that_never_said_so_does_not_apply(not_applicable, decoder, tokens, classes, net):
    assert "causal=True" in not_applicable(NAME, model=net(), loss=nn.CrossEntropyLoss(), batch=classes).message
    not_applicable(NAME, model=decoder(is_causal=False), batch=tokens[0])
    not_applicable(NAME, model=decoder(is_causal=False), batch=tokens[0], causal=False)


def test_saying_so_is_enough(broken, holds, decoder, tokens):
    holds(NAME, model=decoder(), batch=tokens[0], causal=True)
    broken(NAME, model=decoder(is_causal=False), batch=tokens[0], causal=True)


def test_real_numbers_over_time(holds, broken):
    torch.manual_seed(0)
    batch = torch.randn(3, 9, 4)

    class Mean(nn.Module):
        def __init__(self, *, running):
            super().__init__()
            self.lift, self.running = nn.Linear(4, 4), running

        def forward(self, x):
            h = self.lift(x)
            steps = torch.arange(1, h.shape[1] + 1)[None, :, None]
            return h.cumsum(1) / steps if self.running else h - h.mean(1, keepdim=True)

    holds(NAME, model=Mean(running=True), batch=batch, causal=True)
    evidence = broken(NAME, model=Mean(running=False), batch=batch, causal=True)
    assert "lift" not in evidence.cause
