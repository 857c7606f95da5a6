"""Exponential moving average of the weights, used in evaluation."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Final

import torch
from torch import Tensor, nn

from trueloop.core.errors import CheckpointError, InvalidConfig, InvalidModel
from trueloop.training.distributed.dtensors import from_local_part, local_part, reshard, shard_like

_lerp: Final = torch._foreach_lerp_  # pyright: ignore[reportPrivateUsage]  # swa_utils itself has no public name for it


class WeightAverage:
    """Exponential moving average of a model's parameters and persistent buffers.

    ``average = decay * average + (1 - decay) * weights`` after every update, starting from the weights at
    construction. (``torch.optim.swa_utils.AveragedModel`` instead copies the weights at its first update; called once
    before training, it is the same.) In a run much shorter than ``1 / (1 - decay)`` updates the initial weights still
    count. Integer and boolean buffers, which have no mean, are copied. Tied weights are averaged once. Buffers that are
    not persistent are constants of the architecture and stay in the model. Of a sharded model, every process averages
    its own part.

    Args:
        model: on its final device; its parameters must stay the same objects.
        decay: how much of the old average stays at each update, in (0, 1).

    Raises:
        InvalidConfig: ``decay`` is outside (0, 1).
        InvalidModel: a weight has fewer than 32 bits, so that its average would soon stop changing.

    Cost: one more copy of the weights in memory, and one pass over both per update.
    Source: Polyak & Juditsky, 1992, doi:10.1137/0330046.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 < decay < 1:
            raise InvalidConfig(
                f"ema is {decay}, which is not in (0, 1).",
                why="At 1 the average never changes, at 0 it equals the weights.",
                fix="Set a decay such as 0.999, or leave it out for no average.",
            )
        self._decay: Final = decay
        persistent = model.state_dict().keys()
        buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
        self._live: Final[dict[str, Tensor]] = {**dict(model.named_parameters()), **buffers}
        _refuse_low_precision(self._live)
        self._model: Final = model
        self._average: Final = {name: local_part(tensor.detach()).clone() for name, tensor in self._live.items()}
        self._parameters: Final = [name for name in self._live if name not in buffers and _has_mean(self._live[name])]
        self._buffers: Final = [name for name in buffers if _has_mean(self._live[name])]
        self._copied: Final = [name for name in self._live if not _has_mean(self._live[name])]
        means = [self._live[name].real.dtype for name in self._parameters + self._buffers]
        self._weight_dtype: Final = reduce(torch.promote_types, means, torch.float32)
        self._applied = False

    @torch.no_grad()
    def update(self, skipped: Tensor | float = 0.0) -> None:
        """Move the average towards the weights, once per optimizer update.

        Args:
            skipped: 1 where the update was not taken: the average then stays bitwise unchanged, whatever a NaN
                batch left in the buffers. A 0-d tensor on the weights' device where only the device knows.

        Cost: one fused pass; no host synchronisation, also with ``skipped``.
        """
        self._refuse_while_applied()
        moving = self._parameters + self._buffers
        average = [self._average[name] for name in moving]
        if not isinstance(skipped, Tensor):
            if skipped:
                return
            _lerp(average, [local_part(self._live[name]) for name in moving], 1 - self._decay)
            for name in self._copied:
                self._average[name].copy_(self._live[name])
            return
        was_skipped = skipped.bool()
        weight = (1 - self._decay) * (1 - skipped.to(self._weight_dtype))
        # Weights of a skipped update are finite, buffers may not be, and 0 * nan would still change the average.
        current = [local_part(self._live[name]) for name in self._parameters]
        current += [torch.where(was_skipped, self._average[name], self._live[name]) for name in self._buffers]
        weights = [weight.to(each.dtype) if each.is_complex() else weight for each in average]  # torch 2.6 mixes none
        _lerp(average, current, weights)
        for name in self._copied:
            self._average[name].copy_(torch.where(was_skipped, self._average[name], self._live[name]))

    @contextmanager
    def applied(self) -> Generator[None]:
        """Swap the average into the model for the length of a ``with`` block, and the trained weights back after it.

        A ``state_dict`` taken inside refers to the average itself, which changes later: clone or write it inside.

        Raises:
            InvalidModel: it is already applied.

        Cost: pointers are swapped and nothing is copied, except for a sharded model, whose parts are copied.
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
        """Return the average under the model's names, tied weights once; a reference, not a copy."""
        return {name: from_local_part(self._live[name], average) for name, average in self._average.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy a saved average into this one.

        Raises:
            CheckpointError: names or shapes differ from this model's; nothing has been copied then.
        """
        wrong = [f"{name} is missing" for name in self._average if name not in state]
        wrong += [f"{name} is not in the model" for name in state if name not in self._average]
        wrong += [
            f"{name} has shape {tuple(state[name].shape)}, not {tuple(live.shape)}"
            for name, live in self._live.items()
            if name in state and state[name].shape != live.shape
        ]
        if wrong:
            raise CheckpointError(
                f"The averaged weights do not fit the model: {'; '.join(wrong[:5])}.",
                fix="Resume with the model the checkpoint was trained with, or start a new run.",
            )
        for name, average in self._average.items():
            average.copy_(local_part(shard_like(self._live[name], state[name])))

    @torch.no_grad()
    def _swap(self) -> None:
        reshard(self._model)
        for name, live in self._live.items():
            if (here := local_part(live)) is live:
                live.data, self._average[name] = self._average[name], live.data
            else:  # FSDP gathers from memory that it has chosen, so the tensor has to stay in place
                trained = here.clone()
                here.copy_(self._average[name])
                self._average[name].copy_(trained)

    def _refuse_while_applied(self) -> None:
        if self._applied:
            raise InvalidModel(
                "The averaged weights are in the model now.",
                why="They would be averaged with themselves, or mistaken for the trained ones.",
                fix="Leave the `with average.applied()` block first.",
            )


def _has_mean(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _refuse_low_precision(tensors: Mapping[str, Tensor]) -> None:
    few = [name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.element_size() < 4]
    if few:
        raise InvalidModel(
            f"{few[0]} has the dtype {tensors[few[0]].dtype}, in which weights cannot be averaged.",
            why="A step of 1 - decay is smaller than its rounding, so the average would stop changing.",
            fix='Keep the weights in float32 and set precision = "bf16" for the arithmetic, or leave `ema` out.',
        )
