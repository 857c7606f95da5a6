"""Ignite: both loaders use parts whose indices overlap."""

import torch
from digits_parts import model_and_loaders, parts
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import DataLoader, Subset

model, _, _ = model_and_loaders()
samples = parts()[0]
train = DataLoader(Subset(samples, range(1100)), 32, shuffle=True)
held_out = DataLoader(Subset(samples, range(900, 1280)), 64)  # <- DAT001
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda _: evaluator.run(held_out))
trainer.run(train, max_epochs=2)
