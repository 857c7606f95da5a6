"""Seed, capture and restore the state of all random generators."""

import random
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed Python, NumPy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def capture_rng_state() -> tuple[Any, ...]:
    """Return the state of every global generator."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    return random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state(), cuda, mps


def restore_rng_state(state: tuple[Any, ...]) -> None:
    """Restore every global generator to a state from `capture_rng_state`."""
    python, numpy, cpu, cuda, mps = state
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    for index, device_state in enumerate(cuda):
        torch.cuda.set_rng_state(device_state, index)
    if mps is not None:
        torch.mps.set_rng_state(mps)


@contextmanager
def rng_state_preserved(loaders: Iterable[Any] = ()) -> Generator[None]:
    """Restore every random generator, also those of these loaders, when the context ends."""
    state = capture_rng_state()
    loader_states = [
        (generator, generator.get_state()) for loader in loaders for generator in _loader_generators(loader)
    ]
    try:
        yield
    finally:
        restore_rng_state(state)
        for generator, saved_state in loader_states:
            generator.set_state(saved_state)


def reseed_loaders(loaders: Iterable[Any], seed: int) -> None:
    """Seed the loaders' own generators, which are new in a new process."""
    for loader in loaders:
        for generator in _loader_generators(loader):
            generator.manual_seed(seed)


def _loader_generators(loader: Any) -> list[torch.Generator]:
    sampler = getattr(loader, "sampler", None)
    generators = [getattr(loader, "generator", None), getattr(sampler, "generator", None)]
    return list(
        {id(generator): generator for generator in generators if isinstance(generator, torch.Generator)}.values()
    )
