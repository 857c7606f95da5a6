"""Restore buffers after a non-finite update, count such updates, and stop when there are too many.

The update itself leaves the weights unchanged (`update`). But a bad batch has already changed the model's buffers:
BatchNorm's running statistics would stay NaN, though no weight ever was. So the buffers are copied before the window
and restored.
"""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidConfig, NotFinite
from trueloop.core.protocols import MicroBatch
from trueloop.training.config import GuardConfig
from trueloop.training.optimizers.foreach import copy_tensors
from trueloop.training.precision.locate_nonfinite import Culprit, Replay, locate
from trueloop.training.update import Outcome


class Guard:
    """Restores buffers, counts skipped updates, names the culprit, and stops after too many in a row.

    Args:
        model: its buffers are guarded.
        config: how many skipped updates in a row are allowed.
    """

    def __init__(self, model: nn.Module, config: GuardConfig) -> None:
        if config.max_in_a_row < 1:
            raise InvalidConfig(
                f"guard.max_in_a_row is {config.max_in_a_row}.",
                fix="Use 1 to stop at the first skipped update, or more to tolerate some.",
            )
        self._config = config
        self._cuda = next((p.device for p in model.parameters() if p.is_cuda), None)
        # By module and name: a module may assign another tensor to a buffer.
        places = [(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)]
        self._places = places
        self._buffers_before: list[Tensor] = []
        self._saved: list[Tensor] = []
        self._in_a_row = 0
        self.generator: Tensor | None = None
        self._device_generator: Tensor | None = None
        self.skipped = 0

    def snapshot(self, *, buffers: bool = True) -> None:
        """Copy torch's generators before a window, and the buffers unless something else restores them.

        Cost: one copy of the buffers, where there are any, and 5 kB of generator state; no synchronisation, as the
        state of a CUDA generator is two numbers on the host.
        """
        if self._places and buffers:
            now = self._buffers()
            if len(now) == len(self._buffers_before) and all(map(operator.is_, now, self._buffers_before)):
                copy_tensors(self._saved, now)
            else:
                self._buffers_before, self._saved = now, [buffer.detach().clone() for buffer in now]
        self.generator = torch.get_rng_state()
        if self._cuda is not None:
            self._device_generator = torch.cuda.get_rng_state(self._cuda)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore buffers and generators from the last `snapshot`, for a window that is repeated."""
        for (module, name), buffer, saved in zip(self._places, self._buffers_before, self._saved, strict=True):
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)
            buffer.copy_(saved)
        if self.generator is not None:
            torch.set_rng_state(self.generator)
        if self._cuda is not None and self._device_generator is not None:
            torch.cuda.set_rng_state(self._device_generator, self._cuda)

    def restore_if_skipped(self, outcome: Outcome) -> None:
        """Restore the buffers if the update was skipped; decided on the device if the outcome is there."""
        skipped = outcome.skipped
        if self._places and self._config.enabled and (isinstance(skipped, Tensor) or skipped):
            self._restore_where_skipped(skipped)

    @torch.no_grad()
    def _restore_where_skipped(self, skipped: Tensor | float) -> None:
        bad = skipped.bool() if isinstance(skipped, Tensor) else None
        for (module, name), buffer, saved in zip(self._places, self._buffers_before, self._saved, strict=True):
            now = getattr(module, name)
            value = saved if bad is None else torch.where(bad, saved, now)
            if now is buffer:
                now.copy_(value)
            else:
                setattr(module, name, value.clone())

    def _buffers(self) -> list[Tensor]:
        return [getattr(module, name) for module, name in self._places]

    def record_update(self, *, skipped: bool) -> None:
        """Count one update whose outcome is on the host."""
        self.skipped += skipped
        if not skipped:
            self._in_a_row = 0

    def record_nonfinite(self) -> None:
        """Count a skipped update that was caused by the numbers, not by the loss scale."""
        self._in_a_row += 1

    def locate(self, replay: Replay, window: Sequence[MicroBatch]) -> Culprit | None:
        """Name the non-finite value; None when locating is switched off."""
        return locate(replay, window) if self._config.locate else None

    def raise_if_too_many(self, update: int, culprit: Culprit | None) -> None:
        """Stop after too many in a row.

        Raises:
            NotFinite: with the evidence.
        """
        if self._in_a_row >= self._config.max_in_a_row:
            raise NotFinite(
                f"{self._in_a_row} updates in a row were not finite, up to update {update}.",
                why=f"The last one: {culprit}." if culprit else "Locating is switched off (guard.locate).",
                fix="Check that batch or operation, or lower the learning rate; these updates changed no weight.",
            )

    def state_dict(self) -> dict[str, int]:
        """Return the counters."""
        return {"in_a_row": self._in_a_row, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the counters."""
        self._in_a_row, self.skipped = state["in_a_row"], state["skipped"]
