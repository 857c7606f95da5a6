"""Segmentation where most pixels are class 0, the background; this class counts in the loss, and there is no padding."""

import torch
from torch import nn

torch.manual_seed(0)


def scene(n):
    mask = torch.zeros(n, 16, 16, dtype=torch.long)
    for i in range(n):
        r, c, k = torch.randint(0, 12, (3,)).tolist()
        mask[i, r : r + 4, c : c + 4] = 1 + k % 2
    return torch.randn(n, 1, 16, 16) * 0.3 + mask.unsqueeze(1).float(), mask


net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(20):
    image, mask = scene(8)
    loss = nn.functional.cross_entropy(net(image), mask)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
