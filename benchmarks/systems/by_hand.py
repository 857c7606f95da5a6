"""Train with hand-written loops: the five lines of every tutorial, a production loop, and two ways to accumulate."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset
from workloads import join_batches

from systems.task import Journal, Task, cosine


def bare(task: Task, call: Any = None) -> None:
    """Train with the five lines of every tutorial: no clipping, no schedule, nothing recorded.

    Args:
        task: the run.
        call: function to call instead of the model, with the same parameters; None = the model.
    """
    model, criterion = task.model if call is None else call, task.loss
    optimizer = task.optimizer(task.model)
    task.model.train()
    for _ in range(task.epochs):
        for inputs, targets in task.batches:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()


def production(task: Task) -> None:
    """Train with clipping, a cosine schedule per update, and loss, norm and rate recorded."""
    model, criterion, clip = task.model, task.loss, task.clip
    assert clip is not None
    parameters = list(model.parameters())
    optimizer = task.optimizer(model)
    schedule = cosine(optimizer, task.updates)
    journal = Journal()
    model.train()
    for _ in range(task.epochs):
        for inputs, targets in task.batches:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(inputs), targets)
            loss.backward()
            norm = clip_grad_norm_(parameters, clip)
            rate = optimizer.param_groups[0]["lr"]
            optimizer.step()
            schedule.step()
            journal.add(loss.detach(), norm, rate)


def textbook(model: nn.Module, criterion: nn.Module, dataset: Dataset[Any], *, epochs: int, batch: int) -> None:
    """Train as tutorials do: a shuffling DataLoader, default AdamW, clipping and a cosine schedule; no autocast."""
    loader = DataLoader(dataset, batch_size=batch, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = cosine(optimizer, epochs * len(loader))
    model.train()
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def accumulate(task: Task) -> None:
    """Train with the usual recipe: loss / K, step every K micro-batches and at the end of the epoch."""
    model, criterion = task.model, task.loss
    parameters = list(model.parameters())
    optimizer = task.optimizer(model)
    model.train()
    for _ in range(task.epochs):
        for number, (inputs, targets) in enumerate(task.batches, start=1):
            loss = criterion(model(inputs), targets) / task.window
            loss.backward()
            if number % task.window == 0 or number == len(task.batches):
                if task.clip is not None:
                    clip_grad_norm_(parameters, task.clip)
                optimizer.step()
                optimizer.zero_grad()


def one_big_batch(task: Task) -> None:
    """Train on the concatenated micro-batches of each window as one batch; this is the reference."""
    model, criterion = task.model, task.loss
    optimizer = task.optimizer(model)
    batches = list(task.batches)
    model.train()
    for _ in range(task.epochs):
        for start in range(0, len(batches), task.window):
            inputs, targets = join_batches(batches[start : start + task.window])
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
