"""Train with Accelerate: a custom loop with `accelerator.accumulate`, and its recipe for samples of variable size.

https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

from __future__ import annotations

from itertools import islice

from accelerate import Accelerator
from measure import Indexed
from torch.nn import CrossEntropyLoss
from torch.utils.data import DataLoader

from systems.task import Journal, Task, cosine


def loader(task: Task) -> DataLoader:
    """Wrap the prepared batches: `accumulate` needs a prepared DataLoader to know where the epoch ends."""
    return DataLoader(Indexed(task.batches), batch_size=None)


def train(task: Task) -> None:
    """Train with `accelerator.accumulate(model)`, the guide's first recipe."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=task.window)
    optimizer = task.optimizer(task.model)
    model, optimizer, batches = accelerator.prepare(task.model, optimizer, loader(task))
    model.train()
    for _ in range(task.epochs):
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                loss = task.loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients and task.clip is not None:
                    accelerator.clip_grad_norm_(model.parameters(), task.clip)
                optimizer.step()
                optimizer.zero_grad()
    accelerator.free_memory()


def train_fast(task: Task) -> None:
    """Train with one micro-batch per update, without unnecessary wrappers: no DataLoader, no `accumulate`."""
    assert task.window == 1
    assert task.clip is not None
    accelerator = Accelerator(cpu=True)
    optimizer = task.optimizer(task.model)
    model, optimizer, schedule = accelerator.prepare(task.model, optimizer, cosine(optimizer, task.updates))
    journal = Journal()
    model.train()
    for _ in range(task.epochs):
        for inputs, targets in task.batches:
            loss = task.loss(model(inputs), targets)
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), task.clip)
            rate = schedule.get_last_lr()[0]
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            journal.add(loss.detach(), norm, rate)
    accelerator.free_memory()


def train_counted(task: Task) -> None:
    """Train with the guide's recipe for variable sizes: the summed loss divided by the window's number of targets."""
    assert isinstance(task.loss, CrossEntropyLoss)
    summed = CrossEntropyLoss(reduction="sum")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=task.window)
    optimizer = task.optimizer(task.model)
    model, optimizer, batches = accelerator.prepare(task.model, optimizer, loader(task))
    model.train()
    for _ in range(task.epochs):
        iterator = iter(batches)
        while window := list(islice(iterator, task.window)):
            items = sum(targets.ne(-100).sum() for _, targets in window)
            for inputs, targets in window:
                loss = summed(model(inputs), targets) * task.window / items
                accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.free_memory()
