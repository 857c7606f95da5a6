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

# A compiled block's buffers are written in both passes. Only the version shows it: 2.6 to 2.8 do, 2.9.1 does not.
WRITES_TWICE: Final = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 9)


def enable_recompute(model: nn.Module, only: Collection[str] | None = None) -> list[str]:
    """Make the repeated blocks of a model keep only their inputs, and compute the rest again in backward.

    A block is one of two or more children of the same class in an ``nn.ModuleList`` or ``nn.Sequential``, with
    parameters, and not a single torch layer, which stores little more than its input anyway. Of nested blocks the
    outermost are taken; only an ``nn.Sequential`` of blocks is searched for inner ones.

    Gradients are bitwise the same: the same random numbers are drawn again, and the second pass works on copies of the
    block's buffers from before the first, so BatchNorm counts each batch once. Without a gradient, or in eval
    mode, a block runs normally. Forward hooks on a block fire once, those on its inner modules again in the second
    pass; so does any other side effect in the block's code.

    Only the instance's ``forward`` is replaced: classes, ``state_dict`` keys, pickling and copying do not change.
    ``torch.compile`` works on top, and then decides by itself how random numbers and buffers are kept. Before torch 2.9
    it would write buffers in both passes: compiled blocks that have some are not recomputed there.

    Args:
        model: modified; calling this twice changes nothing more.
        only: names of blocks; None = all of them.

    Returns:
        The names of the blocks, in the model's order.

    Raises:
        InvalidModel: no repeated blocks, a name that is none of theirs, or a block whose instance has a ``forward`` of
            its own.

    Cost: one more forward pass of the blocks per backward, and a copy of their buffers between the two passes.
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
        raise InvalidModel(f"{unknown[0]!r} is no repeated block.", fix=f"The blocks are {', '.join(blocks)}.")
    blocks = {name: block for name, block in blocks.items() if only is None or name in only}
    for name, block in blocks.items():
        _refuse_foreign_forward(name, block)
    for block in blocks.values():
        block.forward = partial(_forward_with_checkpoint, block)  # a partial can be pickled and deep-copied
    return list(blocks)


def repeated_blocks(module: nn.Module, prefix: str = "") -> dict[str, nn.Module]:
    """Return a model's blocks by name, as `enable_recompute` defines them; none where nothing repeats."""
    repeated = Counter(type(child) for child in module) if isinstance(module, nn.ModuleList | nn.Sequential) else {}
    blocks: dict[str, nn.Module] = {}
    for name, child in module.named_children():
        whole = repeated.get(type(child), 0) >= 2 and _is_block(child)
        inner = {} if whole and not isinstance(child, nn.Sequential) else repeated_blocks(child, f"{prefix}{name}.")
        blocks |= {prefix + name: child} if whole and not inner else inner
    return blocks


def _is_block(module: nn.Module) -> bool:
    callable_itself = not isinstance(module, nn.ModuleList | nn.ModuleDict)
    single_layer = type(module).__module__.startswith("torch.nn.modules.") and not any(True for _ in module.children())
    return callable_itself and not single_layer and any(True for _ in module.parameters())


def _refuse_foreign_forward(name: str, block: nn.Module) -> None:
    own: object = vars(block).get("forward")
    if own is not None and not (isinstance(own, partial) and own.func is _forward_with_checkpoint):
        raise InvalidModel(
            f"The block {name} has a forward set on the instance.",
            why="Recomputing would go past it and call the forward of its class.",
            fix="Call trueloop before whatever replaced it, or set recompute = false.",
        )


def _forward_with_checkpoint(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = partial(type(block).forward, block)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)

    def run(*flat: Any) -> Any:
        return forward(*flat[: len(args)], **dict(zip(kwargs, flat[len(args) :], strict=True)))

    # Keywords are passed by position, where checkpoint finds the devices whose random state it saves.
    again = partial(checkpoint, run, *args, *kwargs.values(), use_reentrant=False)
    if not any(True for _ in block.buffers()):
        return again()
    if torch.compiler.is_compiling():
        return forward(*args, **kwargs) if WRITES_TWICE else again()
    return again(context_fn=lambda: (nullcontext(), _OriginalBuffers(block)))


class _OriginalBuffers(AbstractContextManager[None]):
    """While entered, a block works on copies of its buffers from the time of construction.

    Without it torch 2.13 counts every batch twice in BatchNorm's running statistics, and anything a forward reads from
    a buffer it also writes (the power iteration of spectral_norm) would differ in the second pass.
    """

    def __init__(self, block: nn.Module) -> None:
        self._before: Final = [(module, name, buffer.clone()) for module, name, buffer in _buffers(block)]
        self._live: list[tuple[nn.Module, str, Tensor]] = []

    def __enter__(self) -> None:
        self._live = [(module, name, getattr(module, name)) for module, name, _copy in self._before]
        for module, name, copy in self._before:
            setattr(module, name, copy.clone())  # a retained graph enters more than once

    def __exit__(self, *_: object) -> None:
        for module, name, buffer in self._live:
            setattr(module, name, buffer)


def _buffers(block: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    return [
        (module, name, buffer) for module in block.modules() for name, buffer in module.named_buffers(recurse=False)
    ]
