"""What a node of a graph has saved for its backward, and the shapes around it, without unpacking anything.

Hooks of the program on saved tensors (offloading, checkpointing) do not run, and nothing is kept. Before torch 2.8 what
was saved could only be had by running them: there it is not looked at, and whoever needs it says that it cannot judge.
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

UNSUPPORTED_TORCH: Final = "this version of torch does not tell what a graph has saved for its backward"
BEHIND_HOOKS: Final = "what the graph has saved for its backward is behind hooks of the program's own"


def saved_tensor(node: Any, name: str) -> Tensor | None:
    """Return a tensor a node has saved; None where it is gone, or is not to be had without unpacking it."""
    try:
        raw = getattr(node, f"_raw_saved_{name}")
        return raw.data if raw.unpack_hook is None else None
    except (AttributeError, RuntimeError):  # another version of torch; freed by an earlier backward
        return None


def unreadable_reason(node: Any, *names: str) -> str:
    """Say in words why what a node has saved is not to be had; "" where it is, or where nothing of these names was.

    Args:
        node: of a graph.
        names: of what it may have saved.
    """
    for name in names:
        try:
            raw = getattr(node, f"_raw_saved_{name}", None)
        except RuntimeError:  # freed by an earlier backward
            return ""
        if raw is not None:
            if not hasattr(raw, "unpack_hook") or not hasattr(type(raw), "data"):
                return UNSUPPORTED_TORCH
            return "" if raw.unpack_hook is None else BEHIND_HOOKS
    return ""


def result_shape(node: Any, place: int = 0) -> tuple[int, ...] | None:
    """Return the shape of a result of a node's; None where that is not known."""
    made = getattr(node, "_input_metadata", None)
    return tuple(made[place].shape) if made and place < len(made) else None


def input_shape(node: Any) -> tuple[int, ...] | None:
    """Return the shape of the first of a node's inputs that needs a gradient."""
    return next((result_shape(made, place) for made, place in node.next_functions if made is not None), None)
