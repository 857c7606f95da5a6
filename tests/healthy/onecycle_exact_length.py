"""OneCycle over exactly the number of updates, with accumulation: it is stepped once per update, not per micro-batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, ACCUM = 3, 2
torch.manual_seed(0)
x = torch.randn(480, 12)
y = (x @ torch.randn(12, 4)).argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
model = nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
updates_per_epoch = len(loader) // ACCUM
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=2e-2, epochs=EPOCHS, steps_per_epoch=updates_per_epoch)
done = 0
for epoch in range(EPOCHS):
    for i, (xb, yb) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(xb), yb) / ACCUM
        loss.backward()
        if (i + 1) % ACCUM:
            continue
        opt.step()
        if done + 1 < EPOCHS * updates_per_epoch:
            sched.step()
        opt.zero_grad()
        done += 1
print(loss.item() * ACCUM, sched.get_last_lr())
