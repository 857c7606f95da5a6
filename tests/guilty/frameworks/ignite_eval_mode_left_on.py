"""Ignite: training continues in the mode that the evaluation has set."""

import torch
from digits_parts import model_and_loaders
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.metrics import Accuracy
from torch.nn import functional as F

model, train, held_out = model_and_loaders()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def update(engine, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()  # <- EVL002
    return loss.item()


trainer, evaluator = Engine(update), create_supervised_evaluator(model, {"accuracy": Accuracy()})
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda _: evaluator.run(held_out))
trainer.run(train, max_epochs=3)
