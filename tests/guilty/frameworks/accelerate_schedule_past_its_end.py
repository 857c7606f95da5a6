"""Accelerate: a OneCycle schedule made for the micro-batches of one epoch, in a run of three."""

import torch
from accelerate import Accelerator
from digits_parts import model_and_loaders
from torch.nn import functional as F

accelerator = Accelerator(cpu=True)
model, train, _ = model_and_loaders()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(train))
model, optimizer, train, schedule = accelerator.prepare(model, optimizer, train, schedule)
for _ in range(2):
    for x, y in train:
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        schedule.step()  # <- SCH003
        optimizer.zero_grad()
