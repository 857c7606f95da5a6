"""A mask after reduction="none" leaves out the padding of the targets; a masked language model uses -100."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
PAD, MASK, VOCAB = 0, 1, 20


def batch(n=24):
    lengths = torch.randint(3, 11, (n,))
    start = torch.randint(2, VOCAB, (n, 1))
    ids = (start + torch.arange(10)) % (VOCAB - 2) + 2
    return ids.masked_fill(torch.arange(10) >= lengths.unsqueeze(1), PAD)


class Net(nn.Module):
    def __init__(self, bidirectional=False):
        super().__init__()
        self.emb, self.pos = nn.Embedding(VOCAB, 24), nn.Embedding(10, 24)
        self.mix = nn.GRU(24, 24 // (1 + bidirectional), batch_first=True, bidirectional=bidirectional)
        self.out = nn.Linear(24, VOCAB)

    def forward(self, ids):
        return self.out(self.mix(self.emb(ids) + self.pos(torch.arange(ids.size(1))))[0])


def next_token(net):
    ids = batch()
    logits = net(ids[:, :-1])
    losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    mask = (ids[:, 1:] != PAD).float()
    return (losses * mask).sum() / mask.sum()


def masked_lm(net):
    ids = batch()
    hidden = (torch.rand(ids.shape) < 0.3) & (ids != PAD)
    labels = ids.masked_fill(~hidden, -100)
    return F.cross_entropy(net(ids.masked_fill(hidden, MASK)).view(-1, VOCAB), labels.view(-1))


def selected(net):
    ids = batch()
    keep = ids[:, 1:] != PAD
    return F.cross_entropy(net(ids[:, :-1])[keep], ids[:, 1:][keep])


for objective in (next_token, masked_lm, selected):
    net = Net(bidirectional=objective is masked_lm)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
    for step in range(12):
        loss = objective(net)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(objective.__name__, loss.item())
