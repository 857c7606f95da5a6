"""Ignite: a cosine schedule with the length of one epoch, advanced through two."""

import torch
from digits_parts import model_and_loaders
from ignite.engine import Events, create_supervised_trainer
from torch import nn

model, train, _ = model_and_loaders()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(train))
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda _: schedule.step())  # <- SCH003
trainer.run(train, max_epochs=2)
