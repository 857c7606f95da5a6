"""Gradient checkpointing of a model's repeated blocks: recompute their activations in backward."""

from collections import Counter
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trueloop.core.errors import InvalidModel

# Whether a compiled block writes buffers in both passes depends on the version only: 2.6 to 2.8 do, 2.9.1 does not.
WRITES_TWICE: Final = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9)


def enable_recompute(model: nn.Module, only: Collection[str] | None = None) -> list[str]:
    """Make the repeated blocks of a model store only their inputs, and compute everything else again in backward.

    A block is one of two or more children of the same class in an ``nn.ModuleList`` or ``nn.Sequential``; it has
    parameters, and is not a single torch layer, which stores little more than its input anyway. Of nested blocks, only
    the outermost count; but if an ``nn.Sequential`` has inner blocks, these count instead of it.

    Gradients are bitwise the same: the same random numbers are drawn again, and the second pass works on copies of the
    block's original buffers, so that BatchNorm layers count each batch once. In eval mode or without gradients, a block
    runs normally. Forward hooks on a block run once; hooks on its inner modules, and other side effects in the block's
    code, run in both passes.

    Only the instance's ``forward`` is replaced: classes, ``state_dict`` keys, pickling and copying do not change.
    ``torch.compile`` works with it, and then decides how random numbers and buffers are preserved. Before torch 2.9 it
    would write buffers in both passes, so compiled blocks with buffers are not recomputed there.

    Args:
        model: model to modify; a second call changes nothing.
        only: names of blocks; None = all blocks.

    Returns:
        The names of the blocks, in the model's order.

    Raises:
        InvalidModel: there are no repeated blocks, a name is not that of a block, or a block's instance has a
            ``forward`` of its own.

    Cost: one more forward pass of the blocks per backward pass, and a copy of their buffers between the two passes.
    Source: Chen et al., 2016, arXiv:1604.06174.
    """
    blocks = repeated_blocks(model)
    if not blocks:
        raise InvalidModel(
            f"recompute is on, but {type(model).__name__} has no repeated blocks.",
            why="A block is one of two or more children of the same class in an nn.ModuleList or nn.Sequential, with "
            "parameters and more than a single layer. Without blocks, recomputing saves no memory.",
            fix="Put the blocks in an nn.ModuleList, or set recompute = false and use torch.utils.checkpoint yourself.",
        )
    unknown = sorted(set(only or ()) - set(blocks))
    if unknown:
        raise InvalidModel(f"{unknown[0]!r} is not a repeated block.", fix=f"The blocks are {', '.join(blocks)}.")
    blocks = {name: block for name, block in blocks.items() if only is None or name in only}
    for name, block in blocks.items():
        _refuse_foreign_forward(name, block)
    for block in blocks.values():
        block.forward = partial(_forward_with_checkpoint, block)  # a partial can be pickled and deep-copied
    return list(blocks)


def repeated_blocks(module: nn.Module, prefix: str = "") -> dict[str, nn.Module]:
    """Return a model's repeated blocks by name, as `enable_recompute` defines them."""
    repeated = Counter(type(child) for child in module) if isinstance(module, nn.ModuleList | nn.Sequential) else {}
    blocks: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        is_block = repeated.get(type(child), 0) >= 2 and _can_be_block(child)
        inner = {} if is_block and not isinstance(child, nn.Sequential) else repeated_blocks(child, f"{prefix}{name}.")
        blocks |= {prefix + name: child} if is_block and not inner else inner
    return blocks


def _can_be_block(module: nn.Module) -> bool:
    has_forward = not isinstance(module, nn.ModuleList | nn.ModuleDict)
    single_layer = type(module).__module__.startswith("torch.nn.modules.") and not any(True for _ in module.children())
    return has_forward and not single_layer and any(True for _ in module.parameters())


def _refuse_foreign_forward(name: str, block: nn.Module) -> None:
    forward: object = vars(block).get("forward")
    if forward is not None and not (isinstance(forward, partial) and forward.func is _forward_with_checkpoint):
        raise InvalidModel(
            f"The block {name} has a forward set on the instance.",
            why="Recomputing would ignore it and call the forward of the block's class.",
            fix="Replace forward after trueloop has prepared the model, or set recompute = false.",
        )


def _forward_with_checkpoint(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = partial(type(block).forward, block)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)

    def run(*flat: Any) -> Any:
        return forward(*flat[: len(args)], **dict(zip(kwargs, flat[len(args) :], strict=True)))

    # Keyword arguments are passed by position, because checkpoint only looks there for devices with a random state.
    run_checkpointed = partial(checkpoint, run, *args, *kwargs.values(), use_reentrant=False)
    if not any(True for _ in block.buffers()):
        return run_checkpointed()
    if torch.compiler.is_compiling():
        return forward(*args, **kwargs) if WRITES_TWICE else run_checkpointed()
    return run_checkpointed(context_fn=lambda: (nullcontext(), _OriginalBuffers(block)))


class _OriginalBuffers(AbstractContextManager[None]):
    """A context in which a block works on copies of its buffers from the time of construction.

    Without it, torch 2.13 counts every batch twice in BatchNorm's running statistics, and a forward pass that reads and
    writes the same buffer (the power iteration of spectral_norm) computes other values in the second pass.
    """

    def __init__(self, block: nn.Module) -> None:
        self._copies: Final = [(module, name, buffer.clone()) for module, name, buffer in _buffers(block)]
        self._current: list[tuple[nn.Module, str, Tensor]] = []

    def __enter__(self) -> None:
        self._current = [(module, name, getattr(module, name)) for module, name, _copy in self._copies]
        for module, name, copy in self._copies:
            setattr(module, name, copy.clone())  # with a retained graph, the context is entered more than once

    def __exit__(self, *_: object) -> None:
        for module, name, buffer in self._current:
            setattr(module, name, buffer)


def _buffers(block: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    return [
        (module, name, buffer) for module in block.modules() for name, buffer in module.named_buffers(recurse=False)
    ]
