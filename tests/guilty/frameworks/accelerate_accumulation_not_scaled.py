"""Accelerate: accumulation by hand in addition to prepare(), the losses not divided by the number of batches."""

import torch
from accelerate import Accelerator
from digits_parts import model_and_loaders
from torch.nn import functional as F

accelerator = Accelerator(cpu=True)
model, train, _ = model_and_loaders()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
model, optimizer, train = accelerator.prepare(model, optimizer, train)
for _ in range(2):
    for i, (x, y) in enumerate(train):
        accelerator.backward(F.cross_entropy(model(x), y))  # <- GRD003
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
