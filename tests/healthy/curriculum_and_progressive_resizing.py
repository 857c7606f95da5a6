"""Easy samples first, then all; small images first, then large ones; a new loader for each phase, one optimizer."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
d = load_digits()
images, labels = torch.tensor(d.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(d.target)
noise = torch.rand(len(images))
noisy = (images + noise.view(-1, 1, 1, 1) * torch.randn_like(images)).clamp(0, 1)
dataset = TensorDataset(noisy, labels)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
phases = [(0.3, 6), (0.6, 8), (1.0, 12)]
for hardest, size in phases:
    keep = (noise[:1500] <= hardest).nonzero().squeeze(1).tolist()
    loader = DataLoader(Subset(dataset, keep), batch_size=50, shuffle=True)
    for x, y in loader:
        x = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        acc = (model(F.interpolate(images[1500:], size=size)).argmax(1) == labels[1500:]).float().mean().item()
    print(size, loss.item(), acc)
