"""Classifies qualified names of PyTorch and its ecosystem as models, optimizers, losses, loaders ..."""

import re
import sys
from functools import lru_cache
from typing import Final

from trueloop.analysis.abstract_value import ValueKind

WRAPPERS: Final = frozenset((
    "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "DistributedDataParallelCPU",
))  # fmt: skip
FUNCTIONAL_LOSSES: Final = frozenset(
    ("cross_entropy", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits")
)
PARAMETERS: Final = frozenset(("torch.nn.Parameter", "torch.nn.parameter.Parameter"))
LEAF_CONSTRUCTORS: Final = PARAMETERS | {
    "torch.autograd.Variable",
    *(f"torch.{word}" for word in (
        "tensor", "from_numpy", "FloatTensor", "randn", "rand", "zeros", "ones", "full", "arange", "linspace", "eye",
        "empty", "randint", "randperm", "zeros_like", "ones_like", "rand_like", "randn_like", "full_like",
    )),
}  # fmt: skip
"""Functions that create a tensor without a graph."""
HARMLESS_PACKAGES: Final = frozenset((
    *sys.stdlib_module_names, "builtins", "numpy", "torch", "torchvision", "torchaudio", "torchmetrics", "tqdm",
    "sklearn", "scipy", "pandas", "matplotlib", "seaborn", "wandb", "mlflow", "tensorboard", "tensorboardX", "PIL",
    "cv2", "rich", "einops", "omegaconf", "hydra", "yaml", "datasets", "tokenizers", "sentencepiece", "tiktoken",
    "psutil", "gym", "gymnasium", "torchinfo", "torchsummary", "thop", "fvcore", "safetensors", "huggingface_hub",
    "absl", "click", "fire", "loguru", "termcolor", "colorama", "h5py", "networkx", "plotly", "imageio", "skimage",
    "albumentations", "nltk", "evaluate", "sacrebleu", "rouge_score", "optuna", "IPython", "ipywidgets", "pytest",
))  # fmt: skip
"""Packages whose functions do not change the training state of their arguments: gradients, modes and states."""
_CLASS_NAME: Final = re.compile(r"[A-Z]\w*")
_OPTIM: Final = re.compile(
    r"(?:Adam|SGD|RMSprop|Adagrad|Adadelta|LBFGS|Rprop|Lion|LAMB|Lamb|Adafactor|Adan|Sophia|Muon)\w*"
)


@lru_cache(maxsize=4096)
def canonical_name(name: str) -> str:
    """Return the name under which PyTorch documents an object that has several names.

    Args:
        name: qualified name of the object: "torch.optim.adamw.AdamW".
    """
    if not name.startswith("torch."):
        return name
    last = name.rpartition(".")[2]
    for package in ("torch.nn.modules.", "torch.optim.", "torch.utils.data.", "torch.nn.parallel."):
        if name.startswith(package) and not name.startswith(("torch.optim.lr_scheduler", "torch.optim.swa_utils")):
            home = "torch.nn." if package == "torch.nn.modules." else package
            if _CLASS_NAME.fullmatch(last) or package == "torch.utils.data.":
                return home + last
    return name


@lru_cache(maxsize=4096)
def created_kind(name: str) -> ValueKind | None:
    """Return the kind of value that a call creates; None if unknown.

    Args:
        name: canonical name of the callable.
    """
    package, _, last = name.rpartition(".")
    is_class = bool(_CLASS_NAME.fullmatch(last))
    root = name.partition(".")[0]
    if root == "torch":
        return _torch_kind(package, last) if is_class or package.startswith("torch.utils.data") else None
    for found in (_third_party_kind(root, package, last), _kind_by_class_name(last) if is_class else None):
        if found is not None:
            return found
    return None


def _torch_kind(package: str, last: str) -> ValueKind | None:
    if last == "GradScaler":
        return ValueKind.SCALER
    if package == "torch.optim.lr_scheduler" or last == "SWALR":
        return ValueKind.SCHEDULER
    if package == "torch.optim":
        return ValueKind.OPTIMIZER
    if last == "AveragedModel" or last in WRAPPERS:
        return ValueKind.MODEL
    if package == "torch.nn":
        if last in ("Parameter", "ParameterList", "ParameterDict", "Buffer", "UninitializedParameter"):
            return None
        return ValueKind.LOSS if last.endswith("Loss") else ValueKind.MODEL
    if package == "torch.utils.data":
        return _kind_by_class_name(last)
    return None


def _third_party_kind(root: str, package: str, last: str) -> ValueKind | None:
    if package.startswith(("torchvision.models", "segmentation_models_pytorch")) and last[:1].islower():
        return ValueKind.MODEL if not last.startswith(("list_", "get_")) or last == "get_model" else None
    if (root, last) in {("timm", "create_model"), ("transformers", "from_pretrained"), ("transformers", "from_config")}:
        return ValueKind.MODEL if root == "timm" or "Model" in package or "For" in package else None
    if root == "transformers" and last.startswith("get_") and "schedule" in last:
        return ValueKind.SCHEDULER
    if last in ("Accelerator", "Fabric") and root in ("accelerate", "lightning", "lightning_fabric"):
        return ValueKind.ACCELERATOR
    if package.startswith("torchvision.datasets") and _CLASS_NAME.fullmatch(last):
        return ValueKind.DATASET
    return None


def _kind_by_class_name(last: str) -> ValueKind | None:
    if last.endswith("DataLoader"):
        return ValueKind.LOADER
    if last.endswith("Sampler"):
        return ValueKind.SAMPLER
    if last.endswith("Dataset") or last == "Subset":
        return ValueKind.DATASET
    return ValueKind.OPTIMIZER if _OPTIM.fullmatch(last) else None


def is_loss(name: str) -> bool:
    """Return True for a PyTorch function that computes a loss from predictions and targets."""
    package, _, last = name.rpartition(".")
    return package == "torch.nn.functional" and (last.endswith("_loss") or last in FUNCTIONAL_LOSSES)


def is_harmless(name: str) -> bool:
    """Return True for a function of a package whose functions do not change the training state of their arguments."""
    return name.partition(".")[0] in HARMLESS_PACKAGES
