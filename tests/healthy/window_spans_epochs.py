"""Accumulation counted over the whole run: a window may begin in one epoch and end in the next; the run ends at a step count."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE, MAX_UPDATES = 4, 11
torch.manual_seed(0)
x = torch.randn(300, 6)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=30, shuffle=True)
model = nn.Linear(6, 2)
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
micro = updates = 0
while updates < MAX_UPDATES:
    for xb, yb in loader:
        loss = nn.functional.cross_entropy(model(xb), yb) / ACCUMULATE
        loss.backward()
        micro += 1
        if micro % ACCUMULATE == 0:
            opt.step()
            opt.zero_grad()
            updates += 1
            if updates == MAX_UPDATES:
                break
print(micro, updates, loss.item() * ACCUMULATE)
