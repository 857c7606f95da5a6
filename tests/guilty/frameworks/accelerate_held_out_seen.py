"""Accelerate: the indices of the two parts overlap by a few hundred."""

import torch
from accelerate import Accelerator
from digits_parts import model_and_loaders, parts
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

accelerator = Accelerator(cpu=True)
model, _, _ = model_and_loaders()
samples = parts()[0]
train = DataLoader(Subset(samples, range(1100)), 32, shuffle=True)
held_out = DataLoader(Subset(samples, range(900, 1280)), 64)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, train, held_out = accelerator.prepare(model, optimizer, train, held_out)  # <- DAT001
for _ in range(2):
    model.train()
    for x, y in train:
        accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in held_out)
