"""Super-resolution with a perceptual loss: a tuple holds the fixed feature network, so it is neither saved nor trained."""

import torch
import torch.nn.functional as F
from torch import nn


class PerceptualLoss(nn.Module):
    def __init__(self, features):
        super().__init__()
        self._features = (features.eval().requires_grad_(False),)  # not a submodule on purpose

    def forward(self, output, target):
        net = self._features[0]
        return F.l1_loss(net(output), net(target))


class Upscaler(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2)
        )
        self.skip_scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.conv(x) + self.skip_scale * F.interpolate(x, scale_factor=2)


torch.manual_seed(0)
features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2))
criterion = PerceptualLoss(features)
model = Upscaler()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(20):
    hi = torch.rand(8, 1, 16, 16).cumsum(-1) / 16
    lo = F.avg_pool2d(hi, 2)
    out = model(lo)
    loss = F.mse_loss(out, hi) + 0.1 * criterion(out, hi)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
