"""A recurrent language model."""

import torch
import torch.nn as nn


class LM(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, idx):
        h, _ = self.rnn(self.tok(idx))
        return self.out(h)


def build_model(config):
    torch.manual_seed(config.seed)
    return LM(config.vocab, config.dim)
