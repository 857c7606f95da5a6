"""A thousand updates, 3 micro-batches each, gradients set to None by hand right after the step; a probe every 100 updates."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
x = torch.randn(512, 4)
y = torch.sin(x).sum(1, keepdim=True)
micro = 0
norms = []
while micro < 3000:
    i = torch.randint(0, 512, (16,))
    loss = nn.functional.mse_loss(model(x[i]), y[i])
    (loss / 3).backward()
    micro += 1
    if micro % 3 == 0:
        if micro % 300 == 0:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), float("inf")).item())
        optimizer.step()
        for p in model.parameters():
            p.grad = None
print(loss.item(), norms[-1])
