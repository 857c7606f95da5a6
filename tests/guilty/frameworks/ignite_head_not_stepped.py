"""Ignite: a supervised trainer whose optimizer was built before the head was added."""

import torch
from digits_parts import model_and_loaders
from ignite.engine import create_supervised_trainer
from torch import nn

model, train, _ = model_and_loaders()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # <- OPT001
model.extend([nn.ReLU(), nn.Linear(10, 10)])
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
trainer.run(train, max_epochs=2)
