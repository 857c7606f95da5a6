"""Reads the saved tensors of a graph node, and the shapes of its inputs and result, without unpacking.

The program's saved-tensor hooks (offloading, checkpointing) do not run, and no tensor is stored. Before torch 2.8
saved tensors can only be read by running these hooks: there they are not read, and detectors report "not judged".
"""

from typing import Any, Final

from torch import Tensor

UNSUPPORTED_TORCH: Final = "this version of PyTorch does not expose the saved tensors of a graph"
BEHIND_HOOKS: Final = "the program's own saved-tensor hooks hide the saved tensors of the graph"


def saved_tensor(node: Any, name: str) -> Tensor | None:
    """Return a tensor that a node has saved; None if it was freed, or would have to be unpacked."""
    try:
        raw = getattr(node, f"_raw_saved_{name}")
        return raw.data if raw.unpack_hook is None else None
    except (AttributeError, RuntimeError):  # another version of PyTorch; freed by an earlier backward pass
        return None


def unreadable_reason(node: Any, *names: str) -> str:
    """Return the reason why a node's saved tensors cannot be read; "" if they can, or it has saved none.

    Args:
        node: a graph node.
        names: names of tensors that it may have saved.
    """
    for name in names:
        try:
            raw = getattr(node, f"_raw_saved_{name}", None)
        except RuntimeError:  # freed by an earlier backward pass
            return ""
        if raw is not None:
            if not hasattr(raw, "unpack_hook") or not hasattr(type(raw), "data"):
                return UNSUPPORTED_TORCH
            return "" if raw.unpack_hook is None else BEHIND_HOOKS
    return ""


def result_shape(node: Any, index: int = 0) -> tuple[int, ...] | None:
    """Return the shape of a node's result; None if unknown."""
    results = getattr(node, "_input_metadata", None)
    return tuple(results[index].shape) if results and index < len(results) else None


def input_shape(node: Any) -> tuple[int, ...] | None:
    """Return the shape of a node's first input that needs a gradient."""
    return next((result_shape(maker, index) for maker, index in node.next_functions if maker is not None), None)
