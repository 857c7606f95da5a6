"""Many short epochs, each followed by a validation pass, with a schedule per epoch and copies of the best weights."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(400, 8)
y = (x[:, :4].prod(1) > 0).long()
train = DataLoader(TensorDataset(x[:320], y[:320]), batch_size=64, shuffle=True)
val = DataLoader(TensorDataset(x[320:], y[320:]), batch_size=40)
model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
sched = torch.optim.lr_scheduler.MultiStepLR(opt, milestones=[20, 40], gamma=0.3)
best, weights = -1.0, {}
for epoch in range(60):
    model.train()
    for xb, yb in train:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
    sched.step()
    model.eval()
    with torch.inference_mode():
        acc = sum((model(xb).argmax(1) == yb).sum().item() for xb, yb in val) / 80
    if acc > best:
        best, weights = acc, {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
model.load_state_dict(weights)
print(loss.item(), best)
