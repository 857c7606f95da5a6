"""Lists the names of softmax, sigmoid and ReLU, and makes the fix that removes an activation."""

import ast
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import Fix

SOFTMAX: Final = frozenset((
    "torch.softmax", "torch.nn.functional.softmax", "torch.Tensor.softmax", "torch.special.softmax",
    "torch.nn.Softmax", "torch.nn.Softmax2d",
))  # fmt: skip
LOG_SOFTMAX: Final = frozenset((
    "torch.log_softmax", "torch.nn.functional.log_softmax", "torch.Tensor.log_softmax", "torch.nn.LogSoftmax",
))  # fmt: skip
SIGMOID: Final = frozenset((
    "torch.sigmoid", "torch.nn.functional.sigmoid", "torch.Tensor.sigmoid", "torch.special.expit", "torch.nn.Sigmoid",
))  # fmt: skip
RELU: Final = frozenset(("torch.relu", "torch.nn.functional.relu", "torch.Tensor.relu", "torch.nn.ReLU"))
LOG: Final = frozenset(("torch.log", "torch.Tensor.log"))
_LAYERS: Final = frozenset(("torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d", "torch.nn.Conv3d"))
_RESHAPING: Final = (
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "movedim", "clone", "view_as",
    "reshape_as", "swapaxes",
)  # fmt: skip
VIEWS: Final = frozenset(f"{owner}.{name}" for owner in ("torch", "torch.Tensor") for name in _RESHAPING)
"""Operations that change only the shape of a tensor."""


def is_logarithm_twice(origin: AbstractValue) -> bool:
    """Return True for the logarithm of a log-softmax or of a logarithm, which is NaN for every probability."""
    inner = origin.sources[0].origin(VIEWS) if origin.name in LOG and origin.sources else None
    return inner is not None and inner.name in LOG | LOG_SOFTMAX


def is_affine(origin: AbstractValue) -> bool:
    """Return True for the output of a convolution or of a linear layer with a bias."""
    bias = origin.arguments.get("bias") or origin.arguments.get("2")
    return origin.name in _LAYERS and (origin.name != "torch.nn.Linear" or bias is None or bias.constant() is True)


def layer_before(activation: AbstractValue) -> AbstractValue | None:
    """Return the layer whose result an activation gets directly."""
    parent = next(
        (each for each in activation.owners if len(each.sources) > 1 and each.sources[-1] is activation), None
    )
    if parent is not None:
        return parent.sources[-2] if is_affine(parent.sources[-2]) else None
    tensor = next((each for each in activation.sources if each.kind is ValueKind.TENSOR), None)
    origin = None if tensor is None else tensor.origin()
    return origin if origin is not None and is_affine(origin) else None


def remove_activation_fix(source: SourceFile, origin: AbstractValue, name: str) -> Fix | None:
    """Return the fix that removes an operation or layer; None if its call cannot be removed.

    Args:
        source: the file.
        origin: the result of `AbstractValue.origin`.
        name: name of the operation: "softmax".
    """
    description = f"Remove the {name}"
    if origin.kind is ValueKind.TENSOR:
        edits = source.text.unwrap_call(origin.node, method=origin.name.startswith("torch.Tensor."))
        return Fix(edits, safe=False, description=description) if edits else None
    parent = next((each for each in origin.owners if each.sources and each.sources[-1] is origin), None)
    if parent is None or not isinstance(parent.node, ast.Call) or parent.node.args[-1:] != [origin.node]:
        return None
    edit = source.text.drop_last_argument(parent.node)
    return Fix((edit,), safe=False, description=description) if edit else None
