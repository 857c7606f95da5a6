"""A tiny U-Net that finds discs; Dice plus BCE with logits on (N, 1, H, W) masks; checkpoint of the best in memory."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Discs(Dataset):
    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 10007 + i)
        cx, cy, r = (
            torch.rand(3, generator=g) * torch.tensor([10.0, 10.0, 3.0]) + torch.tensor([3.0, 3.0, 2.0])
        ).tolist()
        yy, xx = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        mask = ((xx - cx) ** 2 + (yy - cy) ** 2 < r * r).float().unsqueeze(0)
        return mask + 0.3 * torch.randn(1, 16, 16, generator=g), mask


def double_conv(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = double_conv(1, 8), double_conv(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.conv = double_conv(16, 8)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        return self.out(self.conv(torch.cat([a, self.up(b)], dim=1)))


def dice_loss(logits, target, eps=1.0):
    p = torch.sigmoid(logits)
    return 1 - (2 * (p * target).sum() + eps) / (p.sum() + target.sum() + eps)


torch.manual_seed(0)
train_loader = DataLoader(Discs(96, 1), batch_size=16, shuffle=True)
val_loader = DataLoader(Discs(32, 2), batch_size=16)
model = UNet()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
best, best_state = 0.0, None
for epoch in range(3):
    model.train()
    for img, mask in train_loader:
        logits = model(img)
        loss = F.binary_cross_entropy_with_logits(logits, mask) + dice_loss(logits, mask)
        opt.zero_grad(set_to_none=False)
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        dice = sum(1 - dice_loss(model(img), mask).item() for img, mask in val_loader) / len(val_loader)
    if dice > best:
        best, best_state = dice, copy.deepcopy(model.state_dict())
model.load_state_dict(best_state)
print(loss.item(), best)
