"""Ignite: a custom evaluation engine that does not call eval()."""

import torch
from digits_parts import model_and_loaders
from ignite.engine import Engine, Events, create_supervised_trainer
from ignite.metrics import Accuracy
from torch import nn

model, train, held_out = model_and_loaders()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def infer(engine, batch):
    with torch.no_grad():
        return model(batch[0]), batch[1]  # <- EVL001


trainer, evaluator = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss()), Engine(infer)
Accuracy().attach(evaluator, "accuracy")
trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda _: evaluator.run(held_out))
trainer.run(train, max_epochs=2)
