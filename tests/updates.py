"""Runs a script and returns its first updates, bit for bit: the gradients and the parameters of each optimizer.

Loaded by ``runpy``, and only when needed: the sanitizer reads all modules of a program, and an optimizer in one of them
would be taken for the program's own.
"""

from __future__ import annotations

import hashlib
import os
import random
import runpy
from pathlib import Path

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

UPDATES = 5  # of each optimizer: a gradient that was cut shows in the first


def first_updates(script: str, folder: Path) -> list[tuple[str, ...]]:
    """Run a script from fixed seeds, in a folder of its own.

    Returns:
        For each update ``("gradients", ...)`` and ``("parameters", ...)``, with a digest of each tensor.
    """
    seen: list[tuple[str, ...]] = []
    steps: dict[torch.optim.Optimizer, int] = {}  # holds the optimizers, so that no other one gets the same id

    def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [each for group in optimizer.param_groups for each in group["params"]]

    def before(optimizer: torch.optim.Optimizer, *_: object) -> None:
        steps[optimizer] = steps.get(optimizer, 0) + 1
        if steps[optimizer] <= UPDATES:
            seen.append(("gradients", *(digest(each.grad) for each in parameters(optimizer))))

    def after(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if steps[optimizer] <= UPDATES:
            seen.append(("parameters", *map(digest, parameters(optimizer))))

    folder.mkdir()
    (folder / "train.py").write_text(script)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    here = Path.cwd()
    hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    os.chdir(folder)  # checkpoints are written there
    try:
        runpy.run_path(str(folder / "train.py"), run_name="__main__")
    finally:
        os.chdir(here)
        for hook in hooks:
            hook.remove()
    return seen


def digest(tensor: torch.Tensor | None) -> str:
    """Return a digest of a tensor's bits: NaN equals NaN, and 0.0 differs from -0.0."""
    if tensor is None:
        return "None"
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    return hashlib.sha256(dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
