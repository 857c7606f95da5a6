"""The end of a window: measure the gradient norm, divide, clip and step in one pass over the gradients.

All divisors of the gradients (the window's count, the loss scale, the clipping factor) are combined into one number.
Fused optimizers take it as `grad_scale` and divide while they read the gradients; for others, `_foreach_div_` divides.
Non-finite gradients are never applied.

There are two implementations with equal results: `CpuUpdate` reads the norm on the CPU, for which it waits for the GPU
if there is one; `DeviceUpdate` decides on the GPU, and the norm is read later.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from trueloop.core.errors import InvalidModel
from trueloop.training.optimizers.adamw import LeanAdamW
from trueloop.training.optimizers.foreach import divide, total_norm, total_norm_as_float

# Optimizers whose fused kernels use grad_scale and found_inf.
_FUSED_SCALING = (LeanAdamW, torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)


class Outcome(NamedTuple):
    """The result of one window's update."""

    norm: Tensor | float
    """L2 norm of the window's gradient over all parameters, before clipping."""
    skipped: Tensor | float
    """1 if the optimizer did not step because the gradient was not finite or the count was 0, else 0. It is a tensor if
    the decision was made on the GPU."""


class Update(Protocol):
    """Turns accumulated gradients into one optimizer step, or skips it."""

    def zero_grad(self) -> None:
        """Set every gradient to None."""
        ...

    def step(self, divisor: Tensor | float) -> Outcome:
        """Divide the gradients by ``divisor``, clip them, and step.

        Raises:
            InvalidModel: no parameter has a gradient.
        """
        ...


def make_update(optimizer: torch.optim.Optimizer, clip: float | None, *, skip_nonfinite: bool = True) -> Update:
    """Return the implementation that fits the optimizer and the device.

    Args:
        optimizer: the optimizer of the parameters.
        clip: upper bound of the gradient norm over all parameters, or None.
        skip_nonfinite: whether to skip updates with non-finite gradients.

    Raises:
        InvalidModel: the optimizer needs a closure, which one window cannot provide.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidModel(
            "LBFGS evaluates the loss several times per step, which is impossible for a window of micro-batches.",
            fix="Use AdamW or SGD here, or write your own loop for LBFGS, with a closure.",
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    fused_scaling = _has_fused_scaling(optimizer, parameters)
    if fused_scaling and all(p.device.type != "cpu" for p in parameters):
        return DeviceUpdate(optimizer, parameters, clip, skip_nonfinite=skip_nonfinite)
    return CpuUpdate(optimizer, parameters, clip, fused_scaling=fused_scaling, skip_nonfinite=skip_nonfinite)


def _has_fused_scaling(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> bool:
    """Return True if the fused kernel can divide; its divisor is a float32, so float64 gradients are excluded."""
    fused = all(group.get("fused") for group in optimizer.param_groups)
    return type(optimizer) in _FUSED_SCALING and fused and all(p.dtype != torch.float64 for p in parameters)


class _ClippedUpdate:
    """Base class of both implementations: stores the settings and clears the gradients.

    Args:
        optimizer: optimizer that steps.
        parameters: all parameters of the optimizer.
        clip: upper bound of the gradient norm over all parameters, or None.
        skip_nonfinite: whether to skip updates with non-finite gradients.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[Tensor],
        clip: float | None,
        *,
        skip_nonfinite: bool = True,
    ) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self._bound = math.inf if clip is None else clip
        self._skip_nonfinite = skip_nonfinite

    def zero_grad(self) -> None:
        """Set every gradient to None; avoids the 5 µs of the optimizer's method."""
        for parameter in self._parameters:
            parameter.grad = None


class CpuUpdate(_ClippedUpdate):
    """Reads the norm on the CPU, then steps or skips."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[Tensor],
        clip: float | None,
        *,
        fused_scaling: bool,
        skip_nonfinite: bool = True,
    ) -> None:
        super().__init__(optimizer, parameters, clip, skip_nonfinite=skip_nonfinite)
        self._divisor_value = 1.0
        """The number in `_divisor_tensor`, so that an unchanged divisor is not written again."""
        self._divisor_tensor = torch.ones((), device=parameters[0].device) if fused_scaling else None
        if self._divisor_tensor is not None:
            _install_grad_scale(optimizer, self._divisor_tensor, None)

    def step(self, divisor: Tensor | float) -> Outcome:
        """Divide, clip and step; wait for the GPU once if the gradients are on one."""
        gradients, undivided_norm = self._read_gradients()
        count = float(divisor)
        norm = undivided_norm / count if count else math.nan
        finite = math.isfinite(norm)
        if not count or (self._skip_nonfinite and not finite):
            return Outcome(norm, 1.0)
        total_divisor = count * max(1.0, norm / self._bound) if finite else count
        if self._divisor_tensor is not None:
            if total_divisor != self._divisor_value:
                self._divisor_tensor.fill_(total_divisor)
                self._divisor_value = total_divisor
        elif total_divisor != 1.0:
            divide(gradients, total_divisor)
        self._optimizer.step()
        return Outcome(norm, 0.0)

    def _read_gradients(self) -> tuple[list[Tensor], float]:
        """Return the gradients, not divided yet, and their norm."""
        gradients = collect_gradients(self._parameters)
        return gradients, total_norm_as_float(gradients)


class DeviceUpdate(_ClippedUpdate):
    """Decides on the GPU: the fused kernel divides by a tensor, and skips if `found_inf` is 1."""

    def step(self, divisor: Tensor | float) -> Outcome:
        """Divide, clip and step without waiting for the GPU."""
        gradients = collect_gradients(self._parameters)
        norm = total_norm(gradients) / divisor
        finite = torch.isfinite(norm)
        applied = finite if self._skip_nonfinite else torch.as_tensor(divisor, device=norm.device) != 0
        skipped = 1.0 - applied.float()
        clip_divisor = (norm / self._bound).clamp(min=1.0)
        if not self._skip_nonfinite:  # the update is applied; as in CpuUpdate, an infinite norm does not clip
            clip_divisor = torch.where(finite, clip_divisor, 1.0)
        _install_grad_scale(self._optimizer, (clip_divisor * divisor).float(), skipped)
        self._optimizer.step()
        return Outcome(norm, skipped)


def collect_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients of the parameters that have one.

    Raises:
        InvalidModel: no parameter has a gradient.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        raise InvalidModel(
            "No parameter of the optimizer received a gradient.",
            why="The loss does not depend on the parameters of the optimizer.",
            fix="Check that the model's output reaches the loss without detach(), .data, .item() or no_grad().",
        )
    return gradients


def _install_grad_scale(optimizer: torch.optim.Optimizer, divisor: Tensor, skipped: Tensor | None) -> None:
    """Set the two attributes that GradScaler passes to a fused kernel."""
    fused = cast("_FusedOptimizer", optimizer)
    fused.grad_scale = divisor
    fused.found_inf = skipped


class _FusedOptimizer(Protocol):
    grad_scale: Tensor
    found_inf: Tensor | None
