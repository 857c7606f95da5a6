"""The installed torch and the devices it can use, as facts."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

from trueloop.doctor.machine import Gpu, TorchInstall


def read_torch(*, deep: bool = False) -> tuple[TorchInstall | None, str]:
    """Return what there is to know of torch, or why it cannot be imported; (None, "") where it is not installed.

    Args:
        deep: also how much memory is free on each GPU, which takes a context on it.

    Cost: imports torch, and asks the driver for its devices.
    """
    if importlib.util.find_spec("torch") is None:
        return None, ""
    try:
        import torch
    except (ImportError, OSError) as error:  # a library that is missing, or of another version
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
    with warnings.catch_warnings(record=True) as told:  # torch warns of a driver that is too old, and goes on without
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
        gpus = tuple(_gpu(torch, index, deep=deep) for index in range(torch.cuda.device_count() if usable else 0))
    backends: Any = torch.backends
    seen = TorchInstall(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        hip=torch.version.hip,
        gpus=gpus,
        mps=bool(backends.mps.is_available()),
        problem="" if gpus else " ".join(str(each.message).splitlines()[0] for each in told[:1]),
        built_for=tuple(torch.cuda.get_arch_list()) if usable else (),
        threads=torch.get_num_threads(),
        cudnn_benchmark=bool(backends.cudnn.benchmark),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        tf32_matmul=_allows_tf32(backends.cuda.matmul),
        tf32_convolution=_allows_tf32(backends.cudnn),
    )
    return seen, ""


def _gpu(torch: Any, index: int, *, deep: bool) -> Gpu:
    known = torch.cuda.get_device_properties(index)
    return Gpu(
        name=known.name,
        memory_bytes=known.total_memory,
        free_bytes=torch.cuda.mem_get_info(index)[0] if deep else None,
        capability=(known.major, known.minor),
    )


def _allows_tf32(backend: Any) -> bool | None:
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:  # torch 2.9 and later, where the program has used the new setting as well as the old one
        return None
