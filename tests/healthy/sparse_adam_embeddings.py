"""Skip-gram with negative sampling: sparse gradients, SparseAdam, two embedding tables."""

import torch
import torch.nn.functional as F
from torch import nn


class SkipGram(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.u = nn.Embedding(vocab, dim, sparse=True)
        self.v = nn.Embedding(vocab, dim, sparse=True)
        nn.init.uniform_(self.u.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.v.weight)

    def forward(self, centre, context, negatives):
        u = self.u(centre)
        good = F.logsigmoid((u * self.v(context)).sum(1))
        bad = F.logsigmoid(-torch.bmm(self.v(negatives), u.unsqueeze(2)).squeeze(2)).sum(1)
        return -(good + bad).mean()


def pairs(corpus, window=2):
    for i, c in enumerate(corpus):
        for j in range(max(0, i - window), min(len(corpus), i + window + 1)):
            if i != j:
                yield c, corpus[j]


torch.manual_seed(0)
corpus = [(i * i) % 40 for i in range(600)]
data = torch.tensor(list(pairs(corpus)))
model = SkipGram(40, 12)
optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.02)
noise = torch.bincount(torch.tensor(corpus), minlength=40).float() ** 0.75
for epoch in range(2):
    for batch in data[torch.randperm(len(data))].split(256):
        optimizer.zero_grad()
        negatives = torch.multinomial(noise, len(batch) * 4, replacement=True).view(len(batch), 4)
        loss = model(batch[:, 0], batch[:, 1], negatives)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
