"""Activation checkpointing, in both variants, with dropout inside; the backward pass runs the forward again."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * d, d))

    def forward(self, x):
        return x + self.net(x)


class Deep(nn.Module):
    def __init__(self, d=16, n=4, reentrant=False):
        super().__init__()
        self.inp = nn.Linear(6, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(n))
        self.tail = nn.Sequential(Block(d), Block(d))
        self.out = nn.Linear(d, 3)
        self.reentrant = reentrant

    def forward(self, x):
        h = self.inp(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.reentrant) if self.training else block(h)
        if self.training:
            h = checkpoint_sequential(self.tail, 2, h, use_reentrant=self.reentrant)
        else:
            h = self.tail(h)
        return self.out(h)


for reentrant in (False, True):
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    y = (x @ torch.randn(6, 3)).argmax(1)
    model = Deep(reentrant=reentrant)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(12):
        idx = torch.randint(0, 256, (64,))
        loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(reentrant, loss.item())
