"""Mixed precision: autocast around the forward pass, and the loss scale that float16 needs."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from trueloop.training.config import Precision
from trueloop.training.distributed.processes import SINGLE_PROCESS, Processes

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the autocast context for forward and loss; it can be entered several times."""
    if precision == "off":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])


class LossScale:
    """The dynamic loss scale of float16, with the semantics and defaults of torch.amp.GradScaler.

    It replaces GradScaler, because unscaling, division by the window's count and clipping are one division here;
    GradScaler would read and write every gradient once more.

    Args:
        device: device of the gradients; the scale is on it, so that nothing waits for the GPU.
        enabled: False for float32 and bfloat16, whose range needs no scale; the scale is then 1.
        growth_interval: number of finite updates in a row after which the scale doubles.

    Source: Micikevicius et al., 2018, arXiv:1710.03740; torch/amp/grad_scaler.py.
    """

    def __init__(self, device: torch.device, *, enabled: bool, growth_interval: int = 2000) -> None:
        self.enabled = enabled
        self._interval = growth_interval
        self.scale = torch.full((), 65536.0 if enabled else 1.0, device=device)
        self._finite_updates = torch.zeros((), device=device)
        self._rounded_count: Tensor | float = 1.0

    def begin_window(self, count: Tensor | float, processes: Processes = SINGLE_PROCESS) -> None:
        """Start a window, whose first micro-batch has this count on this process; all processes use the same scale.

        The total count is rounded to a power of two, so that dividing by it is exact. This division keeps a sum over
        thousands of tokens in the range of float16; `gradient_divisor` undoes it.
        """
        if self.enabled:
            self._rounded_count = _round_to_power_of_two(processes.all_reduce_sum([count])[0])

    def scale_root(self, root: Tensor) -> Tensor:
        """Return the scalar on which to call backward: the micro-batch's sum, scaled."""
        return root * (self.scale / self._rounded_count) if self.enabled else root

    def gradient_divisor(self, divisor: Tensor | float) -> Tensor | float:
        """Return the divisor of the accumulated gradients: the window's count times the factor of `scale_root`."""
        return divisor * (self.scale / self._rounded_count) if self.enabled else divisor

    def update(self, skipped: Tensor | float) -> None:
        """Halve the scale after a skipped update, double it after enough finite ones, without waiting for the GPU."""
        if not self.enabled:
            return
        skip = torch.as_tensor(skipped, device=self.scale.device).bool()
        self._finite_updates = torch.where(skip, 0.0, self._finite_updates + 1)
        grow = self._finite_updates >= self._interval
        double = self.scale * 2  # as in GradScaler, but never infinite, because halving could not reduce it
        self.scale = torch.where(skip, self.scale * 0.5, torch.where(grow & double.isfinite(), double, self.scale))
        self._finite_updates = torch.where(grow, 0.0, self._finite_updates)

    @property
    def is_calibrating(self) -> bool:
        """True while the scale may cause non-finite gradients: with float16, until the scale is below 1."""
        return self.enabled and float(self.scale) >= 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, and the number of finite updates since it last changed."""
        return {"scale": self.scale.detach().cpu(), "clean": self._finite_updates.detach().cpu()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved scale."""
        self.scale = state["scale"].to(self.scale.device)
        self._finite_updates = state["clean"].to(self.scale.device)


def _round_to_power_of_two(count: Tensor | float) -> Tensor | float:
    if isinstance(count, Tensor):
        return torch.exp2(torch.round(torch.log2(count.clamp(min=1).float())))
    return 2.0 ** round(math.log2(max(count, 1.0)))
