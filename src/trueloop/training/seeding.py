"""Seed, capture and restore every random generator, bit for bit."""

import os
import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.training.config import TrainConfig

SEED_LIMIT = 2**32  # limit of NumPy's global generator; the others accept larger seeds


def prepare_generators(config: TrainConfig) -> None:
    """Seed every generator and choose deterministic kernels, if the settings request it."""
    if config.deterministic:
        use_deterministic_kernels()
    if config.seeding:
        seed_everything(config.seed)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on every device.

    Args:
        seed: integer from 0 to 2**32 - 1.

    Raises:
        InvalidConfig: the seed is not an integer in range.
    """
    if type(seed) is not int or not 0 <= seed < SEED_LIMIT:
        raise InvalidConfig(
            f"seed is {seed!r}.",
            why=f"NumPy's generator takes integers from 0 to {SEED_LIMIT - 1}.",
            fix="Choose a seed in that range.",
        )
    random.seed(seed)
    np.random.seed(seed)  # augmentation code uses the global generator
    torch.manual_seed(seed)  # seeds every device; devices that are not yet in use are seeded when they start


def seed_process(seed: int, rank: int, update: int = 0) -> None:
    """Give one of several processes its own random numbers, so that no two draw the same dropout masks.

    Args:
        seed: seed of the run.
        rank: rank of the process; the generators of rank 0 stay those of a run with one process.
        update: number of updates done when the process joins the run.
    """
    if rank:
        seed_everything(int(np.random.SeedSequence([seed, rank, update]).generate_state(1)[0]))


def use_deterministic_kernels() -> None:
    """Make torch raise an error in this process if an operation has no deterministic kernel.

    Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    """
    # cuBLAS reads this when it starts; with a fixed workspace, the order of its sums is fixed.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def capture_generators() -> dict[str, Any]:
    """Return the state of every global generator, as data that `state_tree.pack` accepts.

    Returns:
        States by name: python, numpy, torch, cuda (one per device; empty before CUDA is in use), mps (or None).

    Cost: a copy of about 15 kB.
    """
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "mps": torch.mps.get_rng_state() if torch.backends.mps.is_available() else None,
    }


def restore_generators(state: dict[str, Any]) -> None:
    """Restore every generator to the state that `capture_generators` returned.

    Raises:
        CheckpointError: the state belongs to devices that this machine does not have.
    """
    devices = len(state["cuda"])
    if devices and devices > torch.cuda.device_count():
        raise _missing_device_error(f"{devices} CUDA device(s)", f"{torch.cuda.device_count()}")
    if state["mps"] is not None and not torch.backends.mps.is_available():
        raise _missing_device_error("an MPS device", "none")
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for index, generator in enumerate(state["cuda"]):
        torch.cuda.set_rng_state(generator, index)
    if state["mps"] is not None:
        torch.mps.set_rng_state(state["mps"])


@contextmanager
def preserve_generators() -> Generator[None]:
    """Restore every generator at the end of the context, also after an error.

    CUDA generators are restored only if CUDA was in use at the start of the context.
    """
    state = capture_generators()
    try:
        yield
    finally:
        restore_generators(state)


def _missing_device_error(saved: str, present: str) -> CheckpointError:
    return CheckpointError(
        f"The saved random state is that of {saved}, but this machine has {present}.",
        why="The resumed run would draw different random numbers than the uninterrupted one.",
        fix="Resume on the same devices, or start a fresh run from the saved weights.",
    )
