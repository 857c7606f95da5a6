"""Ignite: create_supervised_trainer with a network that ends in a softmax."""

import torch
from digits_parts import model_and_loaders
from ignite.engine import create_supervised_trainer
from torch import nn

model, train, _ = model_and_loaders()
model.append(nn.Softmax(dim=1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
trainer.run(train, max_epochs=2)  # <- LOS001
