"""PyTorch cannot use a GPU because of its build, its kernels, the driver or the container.

Possible causes are a PyTorch that was built for the CPU only, a driver that is too old, a GPU that this version of
PyTorch does not support, or a container that was started without a GPU. ``trueloop doctor`` finds the cause.
"""

import re

from trueloop.failures.pytorch_error import Explanation, KnownError, RaisedError

_REASONS = {
    "Torch not compiled with CUDA": (
        "This build of PyTorch supports the CPU only.",
        "Install a build with CUDA (https://pytorch.org/get-started/locally/), or select the CPU by name.",
    ),
    "Found no NVIDIA driver": (
        "No NVIDIA driver was found: there is no GPU, or this container or job was started without one.",
        "Request a GPU: docker run --gpus all; Kubernetes resources.limits nvidia.com/gpu; SLURM --gpus-per-node.",
    ),
    "The NVIDIA driver on your system is too old": (
        "The driver is older than the CUDA version of this PyTorch build requires.",
        "Update the driver, or install a build of PyTorch for an older CUDA version.",
    ),
    "CUDA error: no kernel image": (
        "This build of PyTorch has no kernels for the GPU: the GPU is too new or too old for it.",
        "Install a build for this GPU: torch.cuda.get_arch_list() lists what the current build supports.",
    ),
    "No CUDA GPUs are available": (
        "The driver is installed but finds no GPU: CUDA_VISIBLE_DEVICES hides it, or the job was started without one.",
        "Check CUDA_VISIBLE_DEVICES, and the output of nvidia-smi in this container or job.",
    ),
}


def explain(error: RaisedError, match: re.Match[str]) -> Explanation:
    """State the reason that the message names."""
    meaning, fix = next(texts for start, texts in _REASONS.items() if match[0].startswith(start))
    return Explanation(meaning=meaning, fix=f"{fix} `trueloop doctor` shows more.")


ERROR = KnownError(
    title="PyTorch cannot use a GPU",
    exception_types=frozenset({"RuntimeError", "AssertionError", "AcceleratorError"}),
    message_patterns=tuple(_REASONS),
    explain=explain,
)
