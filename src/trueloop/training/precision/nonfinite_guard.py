"""Restore buffers after a non-finite update, count such updates, and stop when there are too many.

A skipped update does not change the weights (`update`). But the forward pass has already changed the model's buffers:
BatchNorm's running statistics would stay NaN. So the buffers are copied before the window, and restored after a skipped
update.
"""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trueloop.core.errors import NotFinite
from trueloop.core.protocols import MicroBatch
from trueloop.training.config import GuardConfig
from trueloop.training.optimizers.foreach import copy_tensors
from trueloop.training.precision.locate_nonfinite import Culprit, Replay, locate
from trueloop.training.update import Outcome


class Guard:
    """Restores buffers, counts skipped updates, locates the non-finite value, and stops after too many in a row.

    Args:
        model: model whose buffers are restored.
        config: settings, such as how many skipped updates in a row are allowed.
    """

    def __init__(self, model: nn.Module, config: GuardConfig) -> None:
        self._config = config
        self._cuda_device = next((p.device for p in model.parameters() if p.is_cuda), None)
        # Buffers are identified by module and name, because a module may assign another tensor to a buffer.
        self._owners = [(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)]
        self._buffers_before: list[Tensor] = []
        self._saved: list[Tensor] = []
        self._in_a_row = 0
        self.generator: Tensor | None = None
        self._device_generator: Tensor | None = None
        self.skipped = 0

    def snapshot(self, *, buffers: bool = True) -> None:
        """Copy torch's generators before a window, and the buffers unless something else restores them.

        Cost: a copy of the buffers and of 5 kB of generator state; does not wait for the GPU, because the state of a
        CUDA generator is on the CPU.
        """
        if self._owners and buffers:
            current = [getattr(module, name) for module, name in self._owners]
            if len(current) == len(self._buffers_before) and all(map(operator.is_, current, self._buffers_before)):
                copy_tensors(self._saved, current)
            else:
                self._buffers_before, self._saved = current, [buffer.detach().clone() for buffer in current]
        self.generator = torch.get_rng_state()
        if self._cuda_device is not None:
            self._device_generator = torch.cuda.get_rng_state(self._cuda_device)

    @torch.no_grad()
    def restore(self) -> None:
        """Restore buffers and generators from the last `snapshot`, for a window that is repeated."""
        for (module, name), buffer, saved in zip(self._owners, self._buffers_before, self._saved, strict=True):
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)
            buffer.copy_(saved)
        if self.generator is not None:
            torch.set_rng_state(self.generator)
        if self._cuda_device is not None and self._device_generator is not None:
            torch.cuda.set_rng_state(self._device_generator, self._cuda_device)

    @torch.no_grad()
    def restore_if_skipped(self, outcome: Outcome) -> None:
        """Restore the buffers if the update was skipped; if the outcome is on the GPU, the decision is made there."""
        skipped = outcome.skipped
        if not self._owners or not self._config.enabled or not (isinstance(skipped, Tensor) or skipped):
            return
        condition = skipped.bool() if isinstance(skipped, Tensor) else None
        for (module, name), buffer, saved in zip(self._owners, self._buffers_before, self._saved, strict=True):
            current = getattr(module, name)
            value = saved if condition is None else torch.where(condition, saved, current)
            if current is buffer:
                current.copy_(value)
            else:
                setattr(module, name, value.clone())

    def record_update(self, *, skipped: bool) -> None:
        """Count one update whose outcome is known on the CPU."""
        self.skipped += skipped
        if not skipped:
            self._in_a_row = 0

    def record_nonfinite(self) -> None:
        """Count an update that was skipped because of non-finite numbers, not because of the loss scale."""
        self._in_a_row += 1

    def locate(self, replay: Replay, window: Sequence[MicroBatch]) -> Culprit | None:
        """Return the first non-finite value of a window; None if locating is switched off."""
        return locate(replay, window) if self._config.locate else None

    def raise_if_too_many(self, update: int, culprit: Culprit | None) -> None:
        """Stop the run after too many skipped updates in a row.

        Raises:
            NotFinite: there were too many; the message describes the last non-finite value.
        """
        if self._in_a_row >= self._config.max_in_a_row:
            raise NotFinite(
                f"{self._in_a_row} updates in a row were not finite, up to update {update}.",
                why=f"In the last one: {culprit}." if culprit else "Locating is switched off (guard.locate).",
                fix="Check this batch or operation, or lower the learning rate; these updates changed no weights.",
            )

    def state_dict(self) -> dict[str, int]:
        """Return the counters."""
        return {"in_a_row": self._in_a_row, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the counters."""
        self._in_a_row, self.skipped = state["in_a_row"], state["skipped"]
