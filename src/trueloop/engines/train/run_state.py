"""Everything a run's future depends on, as one tree of tensors and numbers: what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from trueloop.engines.train.loop import Parts
from trueloop.engines.train.monitor import Monitor
from trueloop.engines.train.seeding import capture_generators, restore_generators
from trueloop.ground.errors import InvalidConfig


@dataclass(slots=True, kw_only=True)
class Position:
    """How far the run is; the part of its state that is plain numbers."""

    epoch: int = 0
    """Epochs completed."""
    update: int = 0
    """Updates done in the whole run, skipped ones included."""
    update_in_epoch: int = 0
    """Updates done in the epoch in hand."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """The newest evaluation, by "split/name"."""


class RunState:
    """The state of a run between two updates.

    Args:
        parts: what the loop turns.
        monitor: what is best so far.
    """

    def __init__(self, parts: Parts, monitor: Monitor) -> None:
        self.parts = parts
        self.monitor = monitor
        self.position = Position()

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state; its tensors are the live ones."""
        parts = self.parts
        return {
            "model": parts.model.state_dict(),
            "optimizer": parts.optimizer.state_dict(),
            "schedule": parts.schedule.state_dict(),
            "scale": parts.scale.state_dict(),
            "average": parts.average.state_dict() if parts.average else None,
            "guard": parts.guard.state_dict(),
            "monitor": self.monitor.state_dict(),
            "generators": capture_generators(),
            "position": asdict(self.position),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state; the run goes on as if it had never stopped."""
        parts = self.parts
        parts.model.load_state_dict(state["model"])
        parts.optimizer.load_state_dict(state["optimizer"])
        parts.schedule.load_state_dict(state["schedule"])
        parts.scale.load_state_dict(state["scale"])
        if parts.average and state["average"] is not None:
            parts.average.load_state_dict(state["average"])
        parts.guard.load_state_dict(state["guard"])
        self.monitor.load_state_dict(state["monitor"])
        restore_generators(state["generators"])
        self.position = Position(**state["position"])

    def resume(self, state: Mapping[str, Any], epochs: int) -> str:
        """Take over a saved state to train until ``epochs``; return a sentence that says so.

        Raises:
            InvalidConfig: more than ``epochs`` are done already.
            CheckpointError: the state is another run's.
        """
        self.load_state_dict(state)
        position = self.position
        if position.epoch + (position.update_in_epoch > 0) > epochs:
            raise InvalidConfig(
                f"epochs is {epochs}, but the run in this folder has already done {position.update} updates and is in "
                f"epoch {position.epoch + 1}.",
                why="Training cannot be taken back.",
                fix="Ask for more epochs, or start over with --fresh (or in another folder).",
            )
        before, now = (schedule.get("updates") for schedule in (state["schedule"], self.parts.schedule.state_dict()))
        longer = "" if before == now else f"; the schedule ends at update {now}, no longer at {before}: the rate jumps"
        return f"Continues after update {position.update}{longer}."

    def shipped_weights(self) -> dict[str, Tensor]:
        """Return a copy of the model's state as it is evaluated: averaged where an average is kept."""
        parts = self.parts
        with parts.average.applied() if parts.average else nullcontext():
            return {name: value.detach().clone() for name, value in parts.model.state_dict().items()}
