"""The dictionary for checkpoints is created once and always refers to the newest weights; it is saved every epoch."""

import io

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 1)
opt = torch.optim.Adam(model.parameters(), lr=5e-2)
checkpoint = {"model": model.state_dict(), "args": {"lr": 5e-2}}
saved = []
x = torch.randn(100, 6)
y = x.sum(1, keepdim=True)
for epoch in range(5):
    for lo in range(0, 100, 25):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x[lo : lo + 25]), y[lo : lo + 25])
        loss.backward()
        opt.step()
    checkpoint["epoch"] = epoch
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    saved.append((loss.item(), buffer))
best = min(saved, key=lambda pair: pair[0])[1]
best.seek(0)
model.load_state_dict(torch.load(best)["model"])
print(nn.functional.mse_loss(model(x), y).item())
