"""Tracks for each parameter, exactly, whether a step has used its gradient, and whether GradScaler has scaled it.

A gradient is identified by its object and version. A step changes neither, and every accumulation raises the version.
Clearing drops the object, raises the version, or (``p.grad.data.zero_()``) changes only the values. A gradient counts
as used if it is unchanged since a step when a backward pass starts, and not zero; it counts as reused if that backward
pass then adds to it. Accumulating into a used gradient is not a mistake (a GAN's generator pass does so), but a step
with the sum is. The ledger does not keep gradients or parameters in memory.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import (
    NO_REFS,
    BackwardEnded,
    BackwardStarted,
    GradientsCleared,
    GradientsClipped,
    GradientsUnscaled,
    PartlyTracedStep,
    Ref,
    Refs,
    StepStarted,
    StepTaken,
    TracingGap,
)
from trueloop.tracing.tracker import Tracker

_Snapshot = tuple[Any, Any]
"""A weak reference to a gradient, and its version."""


class _ReusedGradient(NamedTuple):
    """A gradient to which a backward pass added after a step had used it."""

    snapshot: _Snapshot
    norm: Any
    """Norm before that backward pass, on its device and not read yet; None = it is known to be greater than zero."""
    location: CodePosition | None
    later_norm: Any = None
    """Norm when a later backward pass started, on its device and not read yet."""


class UsedGradients(NamedTuple):
    """Gradients of one step with values that an earlier step has used."""

    parameters: Refs
    location: CodePosition | None
    """The line of a backward pass that added to one of them; if nothing was added, the line of the earlier step."""


class _StepGradients(NamedTuple):
    """Findings about the gradients of one step."""

    optimizer: Ref | None = None
    reused: UsedGradients | None = None
    already_used: UsedGradients | None = None
    still_scaled: Refs = NO_REFS


class GradientLedger(Tracker):
    """The account of all gradients: which were used, added to, cleared, and multiplied by GradScaler's factor."""

    def __init__(self) -> None:
        from trueloop.tracing import gradients  # it imports PyTorch, and `trueloop lint` does not

        self._read = gradients
        self._used: dict[Ref, _Snapshot] = {}
        self._used_before: dict[Ref, Any] = {}
        """Parameters whose used gradient was present when the running backward pass started, with its norm."""
        self._reused: dict[Ref, _ReusedGradient] = {}
        self._scaled: dict[Ref, _Snapshot] = {}
        """Parameters whose gradient contains GradScaler's factor, after the backward pass that added it."""
        self._unused: Refs = NO_REFS
        """Parameters with a contribution to their gradient that no step has used."""
        self._started: dict[Ref, _StepGradients] = {}
        """Optimizer -> its gradients before its running step, or before an update without ``torch.optim``."""
        self._latest = _StepGradients()
        self._latest_step_at: CodePosition | None = None
        self.unused_when_cleared: Refs = NO_REFS
        """Parameters whose gradient the latest `GradientsCleared` discarded before any step used it."""
        self.used_when_clipped: Refs = NO_REFS
        """Parameters whose gradient was unchanged since a step used it when the latest `GradientsClipped` happened."""
        self.scaled_when_clipped: Refs = NO_REFS
        """Parameters whose gradient contained GradScaler's factor when the latest `GradientsClipped` happened."""

    def reused_by(self, optimizer: Ref) -> UsedGradients | None:
        """Return the gradients of the optimizer's latest step to which a backward pass added after a step used them."""
        return self._latest.reused if self._latest.optimizer is optimizer else None

    def already_used_by(self, optimizer: Ref) -> UsedGradients | None:
        """Return the gradients of the optimizer's latest step that were unchanged since an earlier step used them."""
        return self._latest.already_used if self._latest.optimizer is optimizer else None

    def still_scaled_by(self, optimizer: Ref) -> Refs:
        """Return parameters whose gradient was unchanged since the backward pass of a scaled loss, at the step."""
        return self._latest.still_scaled if self._latest.optimizer is optimizer else NO_REFS

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Forget all gradients."""
        for known in (self._used, self._used_before, self._reused, self._scaled):
            known.clear()
        self._started, self._unused = {}, NO_REFS

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Find the used gradients that are still present, which this backward pass may add to."""
        if self._reused:
            self._drop_cleared(event.live_parameters)
        self._used_before = {}
        if not self._used:  # the usual case
            return
        live, used = event.live_parameters, self._used
        present = self._unchanged(used, live)
        self._used = {}
        for ref, norm in zip(present, self._read.l1_norms([live[ref].grad for ref in present]), strict=True):
            if norm is None or norm.device.type != "cpu" or norm > 0:
                self._used[ref] = used[ref]
                self._used_before[ref] = None if norm is None or norm.device.type == "cpu" else norm

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the gradients to which the backward pass has added."""
        reached, live = event.reached_parameters, event.live_parameters
        if self._used_before:
            for ref in reached & self._used_before.keys():
                self._used.pop(ref, None)
                if (gradient := live[ref].grad) is not None:
                    norm = self._used_before[ref]
                    self._reused[ref] = _ReusedGradient(self._read.snapshot(gradient), norm, event.location)
            self._used_before = {}
        self._unused = self._unused | reached if self._unused else reached
        if event.scale is not None:
            self._scaled.update(self._read.snapshots({ref: live[ref] for ref in reached}))
        elif self._scaled:
            _remove(self._scaled, reached)

    def on_gradients_cleared(self, event: GradientsCleared) -> None:
        """Forget the cleared gradients."""
        self.unused_when_cleared = self._unused & event.parameters
        self._forget(event.parameters)
        _remove(self._used, event.parameters)

    def on_gradients_unscaled(self, event: GradientsUnscaled) -> None:
        """Record that the program divided gradients by GradScaler's factor."""
        _remove(self._scaled, event.parameters)

    def on_gradients_clipped(self, event: GradientsClipped) -> None:
        """Find the used and the scaled gradients among the clipped ones, whose versions have changed."""
        self.used_when_clipped = self.scaled_when_clipped = NO_REFS
        if self._scaled:
            self.scaled_when_clipped = event.parameters & self._scaled.keys()
        if self._used:
            for ref, (gradient, version) in event.live_gradients.items():
                known = self._used.get(ref)
                if known is not None and known[0]() is gradient and known[1] == version:
                    self._used[ref] = self._read.snapshot(gradient)
                    self.used_when_clipped |= {ref}

    def on_step_started(self, event: StepStarted) -> None:
        """Examine the gradients before the step, which may change or discard them."""
        self._started[event.optimizer] = self._examine(event.optimizer, event.live_parameters)

    def on_step_taken(self, event: StepTaken) -> None:
        """Examine the gradients of the step, and record them as used."""
        started = self._started.pop(event.optimizer, None)
        if started is None or event.closure:  # the closure has computed the gradients within the step
            started = self._examine(event.optimizer, event.live_parameters)
        elif event.hand_written:  # the program may have unscaled or cleared the gradients since the backward pass
            still_scaled = frozenset(self._unchanged(self._scaled, event.live_parameters))
            started = started._replace(already_used=None, still_scaled=still_scaled)
        self._latest = started
        self.on_partly_traced_step(event)

    def on_partly_traced_step(self, event: StepTaken | PartlyTracedStep) -> None:
        """Record the gradients of the step as used."""
        self._latest_step_at = event.location
        self._forget(event.parameters)
        if self._used:
            _remove(self._used, event.parameters)
        self._used.update(self._read.snapshots(event.live_parameters))

    def _forget(self, parameters: Refs) -> None:
        """Forget what was added to gradients that are now used or cleared."""
        if self._unused:
            self._unused = NO_REFS if self._unused is parameters else self._unused - parameters
        for known in (self._reused, self._scaled):
            if known:
                _remove(known, parameters)

    def _examine(self, optimizer: Ref, parameters: Mapping[Ref, Any]) -> _StepGradients:
        if not (self._reused or self._used or self._scaled):  # the usual case
            return _StepGradients(optimizer)
        used = frozenset(self._unchanged(self._used, parameters))
        scaled = frozenset(self._unchanged(self._scaled, parameters))
        already_used = UsedGradients(used, self._latest_step_at) if used else None
        return _StepGradients(optimizer, self._find_reused(parameters), already_used, scaled)

    def _unchanged(self, known: Mapping[Ref, _Snapshot], live: Mapping[Ref, Any]) -> Sequence[Ref]:
        """Return the parameters whose gradient is the same as in a snapshot."""
        return [ref for ref, seen in known.items() if ref in live and self._read.is_unchanged(live[ref], seen)]

    def _find_reused(self, parameters: Mapping[Ref, Any]) -> UsedGradients | None:
        found: list[Ref] = []
        location: CodePosition | None = None
        for ref, reused in self._reused.items():
            gradient = parameters[ref].grad if ref in parameters else None
            if gradient is None or reused.snapshot[0]() is not gradient:  # cleared, or replaced by another tensor
                continue
            # This synchronises with a GPU, but only at a step that is almost certainly a mistake.
            if all(norm is None or norm > 0 for norm in (reused.norm, reused.later_norm)):
                found.append(ref)
                location = location or reused.location
        return UsedGradients(frozenset(found), location) if found else None

    def _drop_cleared(self, parameters: Mapping[Ref, Any]) -> None:
        """Forget reused gradients that the program itself has cleared before this backward pass."""
        live = {
            ref: gradient
            for ref, reused in self._reused.items()
            if ref in parameters and (gradient := parameters[ref].grad) is not None and reused.snapshot[0]() is gradient
        }
        kept: dict[Ref, _ReusedGradient] = {}
        for (ref, gradient), norm in zip(live.items(), self._read.l1_norms(list(live.values())), strict=True):
            reused = self._reused[ref]
            if norm is None or norm.is_cpu:
                if norm is None or norm > 0:  # norm 0: cleared, as of a GAN's discriminator
                    kept[ref] = reused
            elif reused.snapshot[1] == self._read.version_of(gradient):  # not cleared, except by grad.data.zero_()
                kept[ref] = reused._replace(later_norm=norm)
        self._reused = kept


def _remove(known: dict[Ref, Any], parameters: Refs) -> None:
    """Remove some parameters, if present."""
    if known.keys() <= parameters:  # the usual case
        known.clear()
    else:
        for ref in parameters:
            known.pop(ref, None)
