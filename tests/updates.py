"""Runs a script and returns its first updates as digests: the gradients and the parameters of each optimizer.

Tests load this file with ``runpy`` and only when they need it: the sanitizer searches all imported modules, and would
take an optimizer in this module for one of the program.
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

UPDATES = 5  # number of recorded updates of each optimizer; a missing gradient shows in the first one


def first_updates(script: str, folder: Path) -> list[tuple[str, ...]]:
    """Run a script with fixed seeds in a new folder.

    Returns:
        ``("gradients", digest, ...)`` and ``("parameters", digest, ...)`` for each update.
    """
    recorded: list[tuple[str, ...]] = []
    steps: dict[
        torch.optim.Optimizer, int
    ] = {}  # keeps the optimizers alive, so that no new one gets the id of an old one

    def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return [each for group in optimizer.param_groups for each in group["params"]]

    def before(optimizer: torch.optim.Optimizer, *_: object) -> None:
        steps[optimizer] = steps.get(optimizer, 0) + 1
        if steps[optimizer] <= UPDATES:
            recorded.append(("gradients", *(digest(each.grad) for each in parameters(optimizer))))

    def after(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if steps[optimizer] <= UPDATES:
            recorded.append(("parameters", *map(digest, parameters(optimizer))))

    folder.mkdir()
    (folder / "train.py").write_text(script)
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    previous_folder = Path.cwd()
    hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    os.chdir(folder)  # where the script writes its checkpoints
    try:
        runpy.run_path(str(folder / "train.py"), run_name="__main__")
    finally:
        os.chdir(previous_folder)
        for hook in hooks:
            hook.remove()
    return recorded


def digest(tensor: torch.Tensor | None) -> str:
    """Return a digest of a tensor's bits: NaN equals NaN, and 0.0 differs from -0.0."""
    if tensor is None:
        return "None"
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    return hashlib.sha256(dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
