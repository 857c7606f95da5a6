"""Accelerate: the epoch's loss is summed up with its graph."""

import torch
from accelerate import Accelerator
from digits_parts import model_and_loaders
from torch.nn import functional as F

accelerator = Accelerator(cpu=True)
model, train, _ = model_and_loaders()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, train = accelerator.prepare(model, optimizer, train)
for _ in range(2):
    total = 0
    for x, y in train:
        loss = F.cross_entropy(model(x), y)
        total += loss  # <- MEM001
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.print(total / len(train))
