"""Warm-up from exactly zero; the embedding's group has rate zero for a while; SequentialLR joins warm-up and decay."""

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

torch.manual_seed(0)
emb, head = nn.Embedding(20, 8), nn.Linear(8, 2)
ids = torch.randint(0, 20, (400, 6))
labels = (ids.float().mean(1) > 9.5).long()


def loss_of(idx):
    return nn.functional.cross_entropy(head(emb(ids[idx]).mean(1)), labels[idx])


opt = torch.optim.Adam([{"params": emb.parameters(), "lr": 1e-2}, {"params": head.parameters(), "lr": 1e-2}])
sched = LambdaLR(opt, [lambda s: 0.0 if s < 8 else 1.0, lambda s: min(1.0, s / 4)])
for step in range(20):
    loss = loss_of(torch.randint(0, 400, (40,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
print(loss.item())

opt = torch.optim.SGD([*emb.parameters(), *head.parameters()], lr=0.5)
warm = LinearLR(opt, start_factor=0.1, total_iters=5)
sched = SequentialLR(opt, [warm, CosineAnnealingLR(opt, T_max=15)], milestones=[5])
for step in range(20):
    loss = loss_of(torch.randint(0, 400, (40,)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step < 19:
        sched.step()
print(loss.item(), opt.param_groups[0]["lr"])
