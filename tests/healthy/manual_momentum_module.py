"""An nn.Module trained with hand-written momentum; gradients are set to None by hand, no torch.optim anywhere."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 16), nn.Sigmoid(), nn.Linear(16, 1))
velocity = {p: torch.zeros_like(p) for p in net.parameters()}
X = torch.rand(300, 5)
Y = (10 * torch.sin(3.14 * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]).unsqueeze(1)
Y = (Y - Y.mean()) / Y.std()
for epoch in range(40):
    for lo in range(0, 300, 100):
        loss = nn.functional.mse_loss(net(X[lo : lo + 100]), Y[lo : lo + 100])
        loss.backward()
        with torch.no_grad():
            for p in net.parameters():
                velocity[p].mul_(0.9).add_(p.grad)
                p.sub_(0.05 * velocity[p])
                p.grad = None
print(loss.item())
