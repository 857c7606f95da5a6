"""A batch sampler that groups sequences by length and shuffles the batches again in every epoch."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler


class Bits(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(3)
        self.items = [torch.randint(0, 2, (int(torch.randint(4, 12, (), generator=g)),), generator=g) for _ in range(n)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        bits = self.items[i]
        return bits, (bits.float().mean() > 0.5).float()


class Buckets(Sampler):
    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = lengths, batch_size

    def __iter__(self):
        by_length = {}
        for i in random.sample(range(len(self.lengths)), len(self.lengths)):
            by_length.setdefault(self.lengths[i], []).append(i)
        batches = [b[k : k + self.batch_size] for b in by_length.values() for k in range(0, len(b), self.batch_size)]
        random.shuffle(batches)
        return iter(batches)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(2, 8), nn.GRU(8, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, ids):
        _, h = self.rnn(self.embed(ids))
        return self.out(h[-1]).squeeze(-1)


random.seed(0)
torch.manual_seed(0)
data = Bits(300)
loader = DataLoader(data, batch_sampler=Buckets([len(i) for i in data.items], 16))
net = Net()
opt = torch.optim.Adam(net.parameters(), 1e-2)
for epoch in range(3):
    total = n = 0
    for ids, label in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(net(ids), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total, n = total + loss.item() * len(label), n + len(label)
    print(epoch, total / n)
