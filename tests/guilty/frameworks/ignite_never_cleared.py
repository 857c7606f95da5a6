"""Ignite: a process function without zero_grad."""

import torch
from digits_parts import model_and_loaders
from ignite.engine import Engine
from torch.nn import functional as F

model, train, _ = model_and_loaders()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def update(engine, batch):
    x, y = batch
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()  # <- GRD001
    return loss.item()


Engine(update).run(train, max_epochs=2)
