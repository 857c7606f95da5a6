"""Apply gradient checkpointing to blocks of a model, chosen by their measured memory and time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from trueloop.autograd.block_costs import BlockCost, choose_blocks, measure_blocks
from trueloop.core.errors import InvalidModel
from trueloop.training.memory.recompute import enable_recompute, repeated_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """Blocks that are recomputed, and the measured cost of every block."""

    blocks: tuple[str, ...]
    """Names of the recomputed blocks."""
    costs: tuple[BlockCost, ...]
    """Costs of all blocks, in the model's order."""

    @property
    def saves_b(self) -> int:
        """Number of bytes that the graph of one forward pass no longer holds."""
        return sum(cost.saves_b for cost in self.costs if cost.name in self.blocks)

    @property
    def costs_s(self) -> float:
        """Number of additional seconds of each backward pass."""
        return sum(cost.forward_s for cost in self.costs if cost.name in self.blocks)


def recompute(model: nn.Module, run: Callable[[], Any], *, save_b: int | None = None) -> Recomputed:
    """Measure a model's repeated blocks, and recompute in backward as many of them as save enough memory.

    Gradients are bitwise the same (``torch.utils.checkpoint`` with ``use_reentrant=False``; buffers are written once).
    While a block is recomputed, its saved tensors exist again: the peak falls by the saving minus the largest block.

    Args:
        model: model to modify, on its device and in train mode. Repeated blocks are two or more children of the same
            class in an ``nn.ModuleList`` or ``nn.Sequential``.
        run: function that runs the forward pass and the loss on a batch of the usual size; it is called four times.
        save_b: smallest number of bytes to save; None = recompute all blocks.

    Raises:
        InvalidModel: the model has no repeated blocks, or is in eval mode.
        InvalidConfig: all blocks together save less, or one is not called.

    Source: Chen et al., 2016, arXiv:1604.06174.
    """
    if not model.training:
        raise InvalidModel(
            f"{type(model).__name__} is in eval mode.", why="Blocks are recomputed only in training.",
            fix="Call model.train() first.",
        )  # fmt: skip
    blocks = repeated_blocks(model)
    costs = measure_blocks(model, blocks, run) if blocks else ()
    selected = tuple(blocks) if save_b is None else choose_blocks(costs, save_b)
    enable_recompute(model, None if save_b is None or not blocks else selected)
    return Recomputed(blocks=selected, costs=costs)
