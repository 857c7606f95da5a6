"""AdamW with less Python overhead.

`torch.optim.AdamW(fused=True)` spends four fifths of a small model's step in Python: it collects the same lists of
moments each time, and sorts them by device and dtype. Here torch's `_init_group` collects the lists once, and they are
cached while every parameter of the group has a gradient.
"""

# pyright: reportPrivateUsage=false

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

AMSGRAD: Final = (False,) if "amsgrad" in signature(torch.optim.AdamW._init_group).parameters else ()  # noqa: SLF001
"""Additional argument of torch 2.6 between gradients and moments; later versions read it from the group."""


class _Moments(NamedTuple):
    parameters: list[Tensor]
    averages: list[Tensor]
    squares: list[Tensor]
    steps: list[Tensor]


class LeanAdamW(torch.optim.AdamW):
    """Replaces `torch.optim.AdamW(fused=True)`, with the same state, settings, hooks and bitwise equal results.

    It supports real parameters of one device and dtype (`supports`), without amsgrad and maximize.

    Cost: for two groups of a small network, 35 µs per step instead of 65 µs.
    """

    def __init__(self, params: Any, **settings: Any) -> None:
        self._moments: dict[int, _Moments] = {}
        super().__init__(params, **settings, fused=True)

    @staticmethod
    def supports(parameters: Sequence[Tensor]) -> bool:
        """Return True for real parameters of one device and one dtype."""
        devices_and_dtypes = {(p.device, p.dtype) for p in parameters}
        return len(devices_and_dtypes) == 1 and all(p.is_floating_point() for p in parameters)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        divisor, skipped = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for index, group in enumerate(self.param_groups):
            gradients = [p.grad for p in group["params"]]
            moments = self._moments.get(index)
            if moments is None or any(gradient is None for gradient in gradients):
                moments, gradients = self._collect(index, group)
            if gradients:
                _update(group, moments, gradients, divisor, skipped)
        return loss

    def _collect(self, index: int, group: dict[str, Any]) -> tuple[_Moments, list[Any]]:
        """Let torch collect the tensors of parameters with a gradient; cache them if all parameters have one."""
        moments, gradients = _Moments([], [], [], []), list[Any]()
        collect: Any = self._init_group  # its parameters differ between versions
        collect(group, moments.parameters, gradients, *AMSGRAD, moments.averages, moments.squares, [], moments.steps)
        if len(gradients) == len(group["params"]):
            self._moments[index] = moments
        return moments, gradients

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Clear the cached lists, because a loaded state has other tensors."""
        super().__setstate__(state)
        self._moments = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Clear the cached lists, because the groups have changed."""
        super().add_param_group(param_group)
        self._moments = {}


def _update(
    group: dict[str, Any], moments: _Moments, gradients: list[Any], divisor: Tensor | None, skipped: Tensor | None
) -> None:
    """Run the kernel exactly as `torch.optim.adam._fused_adam` does."""
    torch._foreach_add_(moments.steps, 1)
    beta1, beta2 = group["betas"]
    torch._fused_adamw_(
        moments.parameters, gradients, moments.averages, moments.squares, [], moments.steps,
        amsgrad=False, lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=group["weight_decay"],
        eps=group["eps"], maximize=False, grad_scale=divisor, found_inf=skipped,
    )  # fmt: skip
    if skipped is not None:
        torch._foreach_sub_(moments.steps, [skipped] * len(moments.steps))
