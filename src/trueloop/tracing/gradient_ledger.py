"""Which gradients hold something that an earlier step has already used: an exact account, parameter by parameter.

A gradient is told apart by its object and version. A step leaves both as they are, every accumulation raises the
version, and clearing either drops the object, raises the version or (``p.grad.data.zero_()``) changes the values alone.
So a gradient is used up if it is, at a backward, what it was after the step, and not zero; and mixed if that backward
then added to it. Accumulating into a used gradient is no mistake yet (a GAN's generator pass does it): stepping on it
is. Nothing here keeps a gradient or a parameter alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trueloop.core.findings import CodePosition

Version = tuple[int, int]


class _Seen(NamedTuple):
    """A gradient as it was at a certain moment."""

    parameter: weakref.ref[Tensor]
    gradient: weakref.ref[Tensor]
    version: Version

    def unchanged(self) -> Tensor | None:
        """Return the parameter, if its gradient is still this one in this version."""
        parameter = self.parameter()
        gradient = None if parameter is None else parameter.grad
        if gradient is None or self.gradient() is not gradient or version_of(gradient) != self.version:
            return None
        return parameter


class _Suspect(NamedTuple):
    """A used gradient that is still there when a backward begins."""

    seen: _Seen
    norm: Tensor | None
    """Of what is there, on its device and not read yet; None = known to be more than zero."""


class _Mixed(NamedTuple):
    """A gradient to which a backward added after a step had used it."""

    seen: _Seen
    norm: Tensor | None
    """Of what was there before, not read yet; None = known to be more than zero."""
    place: CodePosition | None
    again: Tensor | None = None
    """Of what was there when a later backward began, on a device and not read yet."""


class GradientLedger:
    """Used and mixed gradients of all parameters."""

    def __init__(self) -> None:
        self._used: dict[int, _Seen] = {}
        self._suspects: list[_Suspect] = []
        self._mixed: dict[int, _Mixed] = {}

    def forget(self) -> None:
        """Start anew, after a stretch that was not watched."""
        self._used.clear()
        self._suspects.clear()
        self._mixed.clear()

    def keep(self, parameters: Iterable[Tensor]) -> None:
        """Forget the gradients of all others."""
        kept = set(map(id, parameters))
        self._used = {key: seen for key, seen in self._used.items() if key in kept}
        self._mixed = {key: mixed for key, mixed in self._mixed.items() if key in kept}

    def stepped(self, parameters: Iterable[Tensor]) -> None:
        """An optimizer has used the gradients of these."""
        used, mixed = self._used, self._mixed
        for parameter in parameters:
            gradient = parameter.grad
            if mixed:
                mixed.pop(id(parameter), None)
            if gradient is not None:
                used[id(parameter)] = _seen(parameter, gradient)
            elif used:
                used.pop(id(parameter), None)

    def on_backward_start(self) -> None:
        """Find the used gradients that are still there: what this backward adds to them will be mixed."""
        self._drop_cleared()
        self._suspects = []
        if not self._used:
            return
        there = {
            key: (seen, parameter) for key, seen in self._used.items() if (parameter := seen.unchanged()) is not None
        }
        norms = _norms([parameter for _, parameter in there.values()])
        self._used.clear()
        for (key, (seen, _)), norm in zip(there.items(), norms, strict=True):
            if norm is None or norm.device.type != "cpu" or norm > 0:
                self._used[key] = seen
                self._suspects.append(_Suspect(seen, None if norm is None or norm.device.type == "cpu" else norm))

    def on_backward_end(self, place: CodePosition | None) -> None:
        """Note the gradients it has added to on top of a used one."""
        for seen, norm in self._suspects:
            parameter = seen.parameter()
            gradient = None if parameter is None else parameter.grad
            if parameter is None or gradient is None:
                continue
            if seen.gradient() is not gradient or version_of(gradient) != seen.version:
                self._used.pop(id(parameter), None)
                self._mixed[id(parameter)] = _Mixed(_seen(parameter, gradient), norm, place)
        self._suspects = []

    def cleared(self, parameters: Iterable[Tensor]) -> None:
        """The gradients of these were cleared."""
        for known in (self._used, self._mixed):
            if known:
                for parameter in parameters:
                    known.pop(id(parameter), None)

    def mixed(self, parameters: Iterable[Tensor]) -> tuple[list[Tensor], CodePosition | None]:
        """Return those whose gradient a step would use a second time, and the backward that added to the first."""
        if not self._mixed:
            return [], None
        found: list[Tensor] = []
        place: CodePosition | None = None
        for parameter in parameters:
            mixed = self._mixed.get(id(parameter))
            if mixed is None or mixed.seen.parameter() is not parameter or parameter.grad is None:
                continue
            # This waits for the device, at a step that is all but certainly wrong.
            if all(norm is None or norm > 0 for norm in (mixed.norm, mixed.again)):
                found.append(parameter)
                place = place or mixed.place
        return found, place

    def used(self, parameters: Iterable[Tensor]) -> list[Tensor]:
        """Return those to whose gradient nothing was added since a step used it."""
        return [parameter for parameter in parameters if self.is_used(parameter)] if self._used else []

    def is_used(self, parameter: Tensor) -> bool:
        """True where nothing was added to the gradient since a step used it."""
        seen = self._used.get(id(parameter))
        return seen is not None and seen.unchanged() is parameter

    def _drop_cleared(self) -> None:
        """A mixed gradient that was cleared by hand before the next backward is clean again."""
        if not self._mixed:
            return
        live = {
            key: (mixed, parameter)
            for key, mixed in self._mixed.items()
            if (parameter := mixed.seen.parameter()) is not None
            and parameter.grad is not None
            and mixed.seen.gradient() is parameter.grad
        }
        norms = _norms([parameter for _, parameter in live.values()])
        self._mixed = {}
        for (key, (mixed, _)), norm in zip(live.items(), norms, strict=True):
            if norm is None or norm.is_cpu:
                if norm is None or norm > 0:  # a GAN's discriminator has been cleared
                    self._mixed[key] = mixed
            elif mixed.seen.unchanged() is not None:  # unless by grad.data.zero_(), which no version tells
                self._mixed[key] = mixed._replace(again=norm)


def version_of(gradient: Tensor) -> Version:
    """Return the versions of a gradient and of the local shard behind it: FSDP2 accumulates into that one only."""
    if type(gradient) is Tensor:
        return gradient._version, -1  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    local: Any = getattr(gradient, "_local_tensor", None)
    return gradient._version, -1 if local is None else local._version  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def _seen(parameter: Tensor, gradient: Tensor) -> _Seen:
    return _Seen(weakref.ref(parameter), weakref.ref(gradient), version_of(gradient))


def _norms(parameters: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the L1 norm of each gradient, or of its local shard, unread; None where it cannot be had."""
    gradients = [local_shard(parameter.grad) for parameter in parameters]
    dense = [g for g in gradients if g is not None]
    norms = iter(torch._foreach_norm(dense, 1) if dense else ())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    return [None if gradient is None else next(norms) for gradient in gradients]


def local_shard(gradient: Tensor | None) -> Tensor | None:
    """Return what of a gradient lies in this process as plain numbers; None where it is sparse or of a strange kind."""
    local = gradient if type(gradient) is Tensor else getattr(gradient, "_local_tensor", gradient)
    if type(local) is not Tensor or local.layout is not torch.strided or local.is_meta:
        return None
    return local.detach() if local.requires_grad else local
