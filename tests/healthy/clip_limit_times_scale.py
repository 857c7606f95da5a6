"""Clipping before unscaling is correct here: the limit is multiplied by the scale, as early mixed-precision code did."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(320, 10)
loader = DataLoader(TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long()), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
max_norm = 0.5
for epoch in range(3):
    for xb, yb in loader:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(xb).float(), yb)
        opt.zero_grad()
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
        scaler.step(opt)
        scaler.update()
print(loss.item(), scaler.get_scale())
