"""Accelerate: no zero_grad; accumulate() alone does not clear."""

import torch
from accelerate import Accelerator
from digits_parts import model_and_loaders
from torch.nn import functional as F

accelerator = Accelerator(cpu=True)
model, train, _ = model_and_loaders()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, train = accelerator.prepare(model, optimizer, train)
for _ in range(2):
    for x, y in train:
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()  # <- GRD001
