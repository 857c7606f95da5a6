"""Tracks for each parameter, exactly, whether its gradient contains values that an earlier step has used.

A gradient is identified by its object and version. A step changes neither, and every accumulation raises the version.
Clearing drops the object, raises the version, or (``p.grad.data.zero_()``) changes only the values. A gradient counts
as used if it is unchanged since a step when a backward pass starts, and not zero; it counts as reused if that backward
pass then adds to it. Accumulating into a used gradient is not a mistake (a GAN's generator pass does so), but a step
with the sum is. The ledger does not keep gradients or parameters in memory.
"""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition

Version = tuple[int, int]


class _GradientSnapshot(NamedTuple):
    """The gradient of a parameter in one version."""

    parameter: weakref.ref[Tensor]
    gradient: weakref.ref[Tensor]
    version: Version

    def unchanged(self) -> Tensor | None:
        """Return the parameter if its gradient is still the same object in the same version, else None."""
        parameter = self.parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or self.gradient() is not gradient or version_of(gradient) != self.version:
            return None
        return parameter


class _UsedGradient(NamedTuple):
    """A used gradient that is still present when a backward pass starts."""

    snapshot: _GradientSnapshot
    norm: Tensor | None
    """Norm of the gradient, on its device and not read yet; None = it is known to be greater than zero."""


class _ReusedGradient(NamedTuple):
    """A gradient to which a backward pass added after a step had used it."""

    snapshot: _GradientSnapshot
    norm: Tensor | None
    """Norm before that backward pass, not read yet; None = it is known to be greater than zero."""
    location: CodePosition | None
    later_norm: Tensor | None = None
    """Norm when a later backward pass started, on its device and not read yet."""


class GradientLedger:
    """The used and reused gradients of all parameters."""

    def __init__(self) -> None:
        self._used: dict[int, _GradientSnapshot] = {}
        self._used_before: list[_UsedGradient] = []
        self._reused: dict[int, _ReusedGradient] = {}

    def clear(self) -> None:
        """Forget all gradients, after updates that were not fully traced."""
        self._used.clear()
        self._used_before.clear()
        self._reused.clear()

    def retain_only(self, parameters: Iterable[Tensor]) -> None:
        """Forget the gradients of all other parameters."""
        ids = set(map(id, parameters))
        self._used = {key: snapshot for key, snapshot in self._used.items() if key in ids}
        self._reused = {key: reused for key, reused in self._reused.items() if key in ids}

    def on_step(self, parameters: Iterable[Tensor]) -> None:
        """Record that an optimizer has used the gradients of these parameters."""
        used, reused = self._used, self._reused
        for parameter in parameters:
            gradient = parameter.grad
            if reused:
                reused.pop(id(parameter), None)
            if gradient is not None:
                used[id(parameter)] = _snapshot(parameter, gradient)
            elif used:
                used.pop(id(parameter), None)

    def on_backward_start(self) -> None:
        """Find the used gradients that are still present, which this backward pass may add to."""
        self._drop_cleared()
        self._used_before = []
        if not self._used:
            return
        present = {
            key: (snapshot, parameter)
            for key, snapshot in self._used.items()
            if (parameter := snapshot.unchanged()) is not None
        }
        norms = _norms([parameter for _, parameter in present.values()])
        self._used.clear()
        for (key, (snapshot, _)), norm in zip(present.items(), norms, strict=True):
            if norm is None or norm.device.type != "cpu" or norm > 0:
                self._used[key] = snapshot
                self._used_before.append(
                    _UsedGradient(snapshot, None if norm is None or norm.device.type == "cpu" else norm)
                )

    def on_backward_end(self, location: CodePosition | None) -> None:
        """Record the used gradients to which the backward pass has added."""
        for snapshot, norm in self._used_before:
            parameter = snapshot.parameter()
            gradient = None if parameter is None else parameter.grad
            if parameter is None or gradient is None:
                continue
            if snapshot.gradient() is not gradient or version_of(gradient) != snapshot.version:
                self._used.pop(id(parameter), None)
                self._reused[id(parameter)] = _ReusedGradient(_snapshot(parameter, gradient), norm, location)
        self._used_before = []

    def on_cleared(self, parameters: Iterable[Tensor]) -> None:
        """Record that the gradients of these parameters were cleared."""
        for known in (self._used, self._reused):
            if known:
                for parameter in parameters:
                    known.pop(id(parameter), None)

    def find_reused(self, parameters: Iterable[Tensor]) -> tuple[list[Tensor], CodePosition | None]:
        """Return the parameters with a reused gradient, and the line of a backward pass that added to one of them."""
        if not self._reused:
            return [], None
        found: list[Tensor] = []
        location: CodePosition | None = None
        for parameter in parameters:
            reused = self._reused.get(id(parameter))
            if reused is None or reused.snapshot.parameter() is not parameter or parameter.grad is None:
                continue
            # This synchronises with a GPU, but only at a step that is almost certainly a mistake.
            if all(norm is None or norm > 0 for norm in (reused.norm, reused.later_norm)):
                found.append(parameter)
                location = location or reused.location
        return found, location

    def find_used(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return the parameters whose gradient is unchanged since a step used it."""
        return [parameter for parameter in parameters if self.is_used(parameter)] if self._used else []

    def is_used(self, parameter: Tensor) -> bool:
        """Return True if the parameter's gradient is unchanged since a step used it."""
        snapshot = self._used.get(id(parameter))
        return snapshot is not None and snapshot.unchanged() is parameter

    def _drop_cleared(self) -> None:
        """Forget reused gradients that the program itself has cleared before this backward pass."""
        if not self._reused:
            return
        live = {
            key: (reused, parameter)
            for key, reused in self._reused.items()
            if (parameter := reused.snapshot.parameter()) is not None
            and parameter.grad is not None
            and reused.snapshot.gradient() is parameter.grad
        }
        norms = _norms([parameter for _, parameter in live.values()])
        self._reused = {}
        for (key, (reused, _)), norm in zip(live.items(), norms, strict=True):
            if norm is None or norm.is_cpu:
                if norm is None or norm > 0:  # norm 0: cleared, as of a GAN's discriminator
                    self._reused[key] = reused
            elif reused.snapshot.unchanged() is not None:  # not cleared, except by grad.data.zero_()
                self._reused[key] = reused._replace(later_norm=norm)


def version_of(gradient: Tensor) -> Version:
    """Return the versions of a gradient and of its local shard, since FSDP2 accumulates into the shard."""
    if type(gradient) is Tensor:
        return gradient._version, -1  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    local: Any = getattr(gradient, "_local_tensor", None)
    return gradient._version, -1 if local is None else local._version  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _snapshot(parameter: Tensor, gradient: Tensor) -> _GradientSnapshot:
    return _GradientSnapshot(weakref.ref(parameter), weakref.ref(gradient), version_of(gradient))


def _norms(parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the L1 norm of each gradient or of its local shard, as a tensor; None if it has no dense values."""
    gradients = [local_shard(parameter.grad) for parameter in parameters]
    dense = [g for g in gradients if g is not None]
    norms = iter(torch._foreach_norm(dense, 1) if dense else ())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    return [None if gradient is None else next(norms) for gradient in gradients]


def local_shard(gradient: Tensor | None) -> Tensor | None:
    """Return the dense values of a gradient in this process; None if it is sparse or of an unknown class."""
    local = gradient if type(gradient) is Tensor else getattr(gradient, "_local_tensor", gradient)
    if type(local) is not Tensor or local.layout is not torch.strided or local.is_meta:
        return None
    return local.detach() if local.requires_grad else local
