"""Ignite: accumulation, a warm-up, metrics on both parts, checkpoints of the best, early stopping, and a run resumed."""

import logging
import tempfile
from pathlib import Path

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import (
    Checkpoint,
    DiskSaver,
    EarlyStopping,
    LRScheduler,
    TerminateOnNan,
    create_lr_scheduler_with_warmup,
    global_step_from_engine,
)
from ignite.metrics import Accuracy, Loss, RunningAverage
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("ignite").setLevel(logging.ERROR)
d = load_digits()
x, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
train = DataLoader(TensorDataset(x[:1280], y[:1280]), 32, shuffle=True)
train_in_order = DataLoader(TensorDataset(x[:1280], y[:1280]), 128)
held_out = DataLoader(TensorDataset(x[1280:], y[1280:]), 100)


def run(epochs, folder, start=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = create_supervised_trainer(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        gradient_accumulation_steps=2,
        output_transform=lambda a, b, c, loss: loss.item(),
    )
    schedule = create_lr_scheduler_with_warmup(
        LRScheduler(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)), 0.01, 10, warmup_end_value=0.1
    )
    trainer.add_event_handler(Events.ITERATION_STARTED(every=2), schedule)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    metrics = {"accuracy": Accuracy(), "nll": Loss(nn.CrossEntropyLoss())}
    on_train, on_held_out = (create_supervised_evaluator(model, metrics) for _ in range(2))

    @trainer.on(Events.EPOCH_COMPLETED)
    def measure(engine):
        on_train.run(train_in_order)
        on_held_out.run(held_out)

    parts = {"model": model, "optimizer": optimizer, "trainer": trainer, "schedule": schedule}
    score = Checkpoint.get_default_score_fn("accuracy")
    steps = global_step_from_engine(trainer)
    best = Checkpoint(
        {"model": model}, DiskSaver(folder, require_empty=False), "best", score, global_step_transform=steps
    )
    last = Checkpoint(parts, DiskSaver(folder, require_empty=False), n_saved=1)
    on_held_out.add_event_handler(Events.COMPLETED, best)
    on_held_out.add_event_handler(Events.COMPLETED, EarlyStopping(3, score, trainer))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, last)
    if start is not None:
        Checkpoint.load_objects(parts, torch.load(start))
    trainer.run(train, max_epochs=epochs)
    return trainer, on_held_out, Path(folder) / last.last_checkpoint


with tempfile.TemporaryDirectory() as folder:
    *_, path = run(2, folder)
    trainer, on_held_out, _ = run(4, folder, start=path)
    print(trainer.state.iteration, trainer.state.metrics["loss"], on_held_out.state.metrics["accuracy"])
