"""Nothing that is not finite is stepped, and nothing of it stays behind.

The update itself leaves the weights alone (`update`). What a bad batch has already touched when that is known are the
model's buffers: BatchNorm's running statistics would stay NaN for ever, though no weight ever was. So they are kept
from before the window and put back.
"""

from __future__ import annotations

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
    """Keeps the buffers, counts what was skipped, names the culprit, stops when it does not end.

    Args:
        model: its buffers are guarded.
        config: how many skipped updates in a row are too many.
    """

    def __init__(self, model: nn.Module, config: GuardConfig) -> None:
        if config.max_in_a_row < 1:
            raise InvalidConfig(
                f"guard.max_in_a_row is {config.max_in_a_row}.",
                fix="Use 1 to stop at the first skipped update, or more to tolerate some.",
            )
        self._config = config
        self._cuda = next((p.device for p in model.parameters() if p.is_cuda), None)
        # By module and name: a module may put another tensor in a buffer's place.
        places = [(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)]
        self._places = places
        self._known: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._in_a_row = 0
        self.generator: Tensor | None = None
        self._device_generator: Tensor | None = None
        self.skipped = 0

    def snapshot(self, *, buffers: bool = True) -> None:
        """Keep torch's generators as they are before a window, and the buffers unless somebody else puts them back.

        Cost: one copy of the buffers, where there are any, and 5 kB of generator state; no synchronisation, as the
        state of a CUDA generator is two numbers on the host.
        """
        if self._places and buffers:
            now = self._buffers()
            if len(now) == len(self._known) and all(map(operator.is_, now, self._known)):
                copy_tensors(self._kept, now)
            else:
                self._known, self._kept = now, [buffer.detach().clone() for buffer in now]
        self.generator = torch.get_rng_state()
        if self._cuda is not None:
            self._device_generator = torch.cuda.get_rng_state(self._cuda)

    @torch.no_grad()
    def restore(self) -> None:
        """Put buffers and generators back to where `snapshot` found them, for a window that is done again."""
        for (module, name), known, kept in zip(self._places, self._known, self._kept, strict=True):
            if getattr(module, name) is not known:
                setattr(module, name, known)
            known.copy_(kept)
        if self.generator is not None:
            torch.set_rng_state(self.generator)
        if self._cuda is not None and self._device_generator is not None:
            torch.cuda.set_rng_state(self._device_generator, self._cuda)

    def restore_if_skipped(self, outcome: Outcome) -> None:
        """Put the buffers back if the update was skipped; decided on the device where the outcome lies there."""
        skipped = outcome.skipped
        if self._places and self._config.enabled and (isinstance(skipped, Tensor) or skipped):
            self._restore_where_skipped(skipped)

    @torch.no_grad()
    def _restore_where_skipped(self, skipped: Tensor | float) -> None:
        bad = skipped.bool() if isinstance(skipped, Tensor) else None
        for (module, name), known, kept in zip(self._places, self._known, self._kept, strict=True):
            now = getattr(module, name)
            right = kept if bad is None else torch.where(bad, kept, now)
            if now is known:
                now.copy_(right)
            else:
                setattr(module, name, right.clone())

    def _buffers(self) -> list[Tensor]:
        return [getattr(module, name) for module, name in self._places]

    def record_update(self, *, skipped: bool) -> None:
        """Count one update that is known on the host."""
        self.skipped += skipped
        if not skipped:
            self._in_a_row = 0

    def record_nonfinite(self) -> None:
        """Count a skipped update that nothing excuses."""
        self._in_a_row += 1

    def locate(self, replay: Replay, window: Sequence[MicroBatch]) -> Culprit | None:
        """Name what was not finite; None when locating is switched off."""
        return locate(replay, window) if self._config.locate else None

    def raise_if_too_many(self, update: int, culprit: Culprit | None) -> None:
        """Give up after too many in a row.

        Raises:
            NotFinite: with the evidence.
        """
        if self._in_a_row >= self._config.max_in_a_row:
            raise NotFinite(
                f"{self._in_a_row} updates in a row were not finite, up to update {update}.",
                why=f"The last one: {culprit}." if culprit else "Locating is switched off (guard.locate).",
                fix="Look at that batch or operation; lower the learning rate; no weight was changed by these updates.",
            )

    def state_dict(self) -> dict[str, int]:
        """Return the counters."""
        return {"in_a_row": self._in_a_row, "skipped": self.skipped}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue counting."""
        self._in_a_row, self.skipped = state["in_a_row"], state["skipped"]
