"""Exponential moving average of the weights, used in evaluation."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Final

import torch
from torch import Tensor, nn

from trueloop.core.errors import CheckpointError, InvalidModel
from trueloop.training.distributed.dtensors import from_local_part, local_part, reshard, shard_like

_lerp: Final = torch._foreach_lerp_  # pyright: ignore[reportPrivateUsage]  # swa_utils itself has no public name for it


class WeightAverage:
    """Exponential moving average of a model's parameters and persistent buffers.

    After every update, ``average = decay * average + (1 - decay) * weights``. The average starts at the weights at
    construction. (``torch.optim.swa_utils.AveragedModel`` instead copies the weights at its first update; updated
    once before training, it has the same average.) In a run much shorter than ``1 / (1 - decay)`` updates, the average
    still depends on the initial weights. Integer and boolean buffers are copied. Tied weights are averaged once.
    Non-persistent buffers are not averaged. If the model is sharded, every process averages its own part.

    Args:
        model: model on its final device; its parameters must remain the same objects.
        decay: weight of the old average at each update, in (0, 1).

    Raises:
        InvalidModel: a weight has fewer than 32 bits, in which its average would soon stop changing.

    Cost: one more copy of the weights in memory, and one pass over both per update.
    Source: Polyak & Juditsky, 1992, doi:10.1137/0330046.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay: Final = decay
        persistent = model.state_dict().keys()
        buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
        self._weights: Final[dict[str, Tensor]] = {**dict(model.named_parameters()), **buffers}
        _refuse_low_precision(self._weights)
        self._model: Final = model
        self._average: Final = {name: local_part(tensor.detach()).clone() for name, tensor in self._weights.items()}
        averaged = [name for name, weight in self._weights.items() if _can_average(weight)]
        self._parameters: Final = [name for name in averaged if name not in buffers]
        self._buffers: Final = [name for name in averaged if name in buffers]
        self._copied: Final = [name for name, weight in self._weights.items() if not _can_average(weight)]
        dtypes = [self._weights[name].real.dtype for name in self._parameters + self._buffers]
        self._weight_dtype: Final = reduce(torch.promote_types, dtypes, torch.float32)
        self._applied = False

    @torch.no_grad()
    def update(self, skipped: Tensor | float = 0.0) -> None:
        """Move the average towards the weights, once per optimizer update.

        Args:
            skipped: 1 if the update was skipped; the average then stays bitwise unchanged, even if the batch has put
                NaN into the buffers. It may be a 0-d tensor on the weights' device.

        Cost: one fused pass; does not wait for the GPU, even if ``skipped`` is a tensor.
        """
        self._refuse_while_applied()
        averaged = self._parameters + self._buffers
        average = [self._average[name] for name in averaged]
        if not isinstance(skipped, Tensor):
            if skipped:
                return
            _lerp(average, [local_part(self._weights[name]) for name in averaged], 1 - self._decay)
            for name in self._copied:
                self._average[name].copy_(self._weights[name])
            return
        was_skipped = skipped.bool()
        weight = (1 - self._decay) * (1 - skipped.to(self._weight_dtype))
        # After a skipped update, buffers may be NaN, and a weight of 0 times NaN would still change the average.
        current = [local_part(self._weights[name]) for name in self._parameters]
        current += [torch.where(was_skipped, self._average[name], self._weights[name]) for name in self._buffers]
        weights = [weight.to(each.dtype) if each.is_complex() else weight for each in average]  # needed by torch 2.6
        _lerp(average, current, weights)
        for name in self._copied:
            self._average[name].copy_(torch.where(was_skipped, self._average[name], self._weights[name]))

    @contextmanager
    def swapped_in(self) -> Generator[None]:
        """Swap the average into the model within a ``with`` block, and the trained weights back at its end.

        A ``state_dict`` from within the block refers to the average, which changes later: copy or write it there.

        Raises:
            InvalidModel: the average is already in the model.

        Cost: swaps pointers without copying; only the parts of a sharded model are copied.
        """
        self._refuse_while_applied()
        self._swap()
        self._applied = True
        try:
            yield
        finally:
            self._applied = False
            self._swap()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the average by the model's names, with one name per tied weight; the tensors are not copied."""
        return {name: from_local_part(self._weights[name], average) for name, average in self._average.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a saved average into this one.

        Raises:
            CheckpointError: names or shapes differ from those of the model; in this case nothing is copied.
        """
        mismatches = [f"{name} is missing" for name in self._average if name not in state]
        mismatches += [f"{name} is not in the model" for name in state if name not in self._average]
        mismatches += [
            f"{name} has shape {tuple(state[name].shape)}, not {tuple(weight.shape)}"
            for name, weight in self._weights.items()
            if name in state and state[name].shape != weight.shape
        ]
        if mismatches:
            raise CheckpointError(
                f"The averaged weights do not fit the model: {'; '.join(mismatches[:5])}.",
                fix="Resume with the model the checkpoint was trained with, or start a new run.",
            )
        for name, average in self._average.items():
            average.copy_(local_part(shard_like(self._weights[name], state[name])))

    @torch.no_grad()
    def _swap(self) -> None:
        reshard(self._model)
        for name, weight in self._weights.items():
            if (part := local_part(weight)) is weight:
                weight.data, self._average[name] = self._average[name], weight.data
            else:  # FSDP reads from memory that it has allocated, so the values have to be copied
                trained = part.clone()
                part.copy_(self._average[name])
                self._average[name].copy_(trained)

    def _refuse_while_applied(self) -> None:
        if self._applied:
            raise InvalidModel(
                "The averaged weights are in the model now.",
                why="They would be averaged with themselves, or treated as the trained weights.",
                fix="Leave the `with average.swapped_in()` block first.",
            )


def _can_average(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _refuse_low_precision(tensors: Mapping[str, Tensor]) -> None:
    low_precision = [name for name, each in tensors.items() if each.is_floating_point() and each.element_size() < 4]
    if low_precision:
        raise InvalidModel(
            f"{low_precision[0]} has the dtype {tensors[low_precision[0]].dtype}, in which weights cannot be averaged.",
            why="A step of 1 - decay is smaller than the rounding, so the average would stop changing.",
            fix='Use float32 weights and precision = "bf16", or leave `ema` out.',
        )
