"""Train whole runs as torch's tutorials and nanoGPT do: mixed precision, loss scaling, clipping, a cosine schedule.

https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html and https://github.com/karpathy/nanoGPT (train.py)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset

from systems.task import cosine, decay_groups


def tutorial(
    model: nn.Module, criterion: nn.Module, dataset: Dataset[Any], *, epochs: int, batch: int, use_amp: bool
) -> None:
    """Train as in torch's recipe for mixed precision; without ``use_amp``, the same loop runs in float32."""
    loader = DataLoader(dataset, batch_size=batch, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = cosine(optimizer, epochs * len(loader))
    scaler = torch.amp.GradScaler("cpu", enabled=use_amp)
    model.train()
    for _ in range(epochs):
        for inputs, targets in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=use_amp):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()


def nanogpt(
    model: nn.Module, criterion: nn.Module, text: bytes, *, updates: int, batch: int, length: int, use_amp: bool
) -> None:
    """Train as nanoGPT does: random slices of one array, decay groups, hand-written schedule, every tenth loss read."""
    data = np.frombuffer(text, dtype=np.uint8)
    optimizer = torch.optim.AdamW(decay_groups(model, 0.1), lr=1e-3, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cpu", enabled=False)  # nanoGPT scales for float16 only
    model.train()

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(data) - length, (batch,))
        x = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in starts])
        return x, y

    inputs, targets = get_batch()
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1.0 + math.cos(math.pi * update / updates))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=use_amp):
            loss = criterion(model(inputs), targets)
        inputs, targets = get_batch()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if update % 10 == 0:
            loss.item()
