"""Ignite: the engine's output is the loss with its graph, and a handler stores all outputs."""

import torch
from digits_parts import model_and_loaders
from ignite.engine import Engine, Events
from torch.nn import functional as F

model, train, _ = model_and_loaders()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def update(engine, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)  # <- MEM001
    loss.backward()
    optimizer.step()
    return loss


trainer, seen = Engine(update), []
trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.state.output))
trainer.run(train, max_epochs=2)
