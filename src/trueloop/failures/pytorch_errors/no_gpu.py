"""Torch can use no GPU: its build, its kernels, the driver, or the container is why.

A wheel for the CPU only, a driver that is older than torch's CUDA asks for, a GPU that torch has no kernels for, or a
container that was started without one. ``trueloop doctor`` says which.
"""

from __future__ import annotations

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_REASONS = {
    "Torch not compiled with CUDA": (
        "This torch is a build for the CPU only.",
        "Install one with CUDA (https://pytorch.org/get-started/locally/), or choose the CPU by name.",
    ),
    "Found no NVIDIA driver": (
        "No driver of NVIDIA's is here: there is no GPU, or this container or job was not given it.",
        "docker run --gpus all; in Kubernetes, resources.limits nvidia.com/gpu; in SLURM, --gpus-per-node.",
    ),
    "The NVIDIA driver on your system is too old": (
        "The driver is older than the CUDA that this torch was built for asks for.",
        "Update the driver, or install a torch that is built for an older CUDA.",
    ),
    "CUDA error: no kernel image": (
        "This torch has no kernels for the GPU that is here: the GPU is too new for it, or too old.",
        "Install a torch that is built for it: torch.cuda.get_arch_list() says what this one is built for.",
    ),
    "No CUDA GPUs are available": (
        "The driver is here, and shows no GPU: CUDA_VISIBLE_DEVICES hides it, or the job was given none.",
        "Look at CUDA_VISIBLE_DEVICES, and at what nvidia-smi lists in this container or job.",
    ),
}


def explain(raised: RaisedError, match: re.Match[str]) -> Explanation:
    """Say which of the reasons it is."""
    meaning, fix = next(words for text, words in _REASONS.items() if match[0].startswith(text))
    return Explanation(meaning=meaning, fix=f"{fix} `trueloop doctor` tells more.")


ERROR = KnownError(
    title="No GPU that torch can use",
    exception_types=frozenset({"RuntimeError", "AssertionError", "AcceleratorError"}),
    message_patterns=tuple(_REASONS),
    explain=explain,
)
