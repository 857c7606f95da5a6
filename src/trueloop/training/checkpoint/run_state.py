"""Everything a run's future depends on, as one tree of tensors and numbers: what a checkpoint holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.training.checkpoint.resume_epoch import EpochOrder
from trueloop.training.checkpoint.run_identity import Differences, Identity, compare
from trueloop.training.config import ScheduleConfig
from trueloop.training.distributed.dtensors import memory_key, shard_optimizer_state, shard_state_like
from trueloop.training.evaluation.monitor import Monitor
from trueloop.training.loop import Assembly
from trueloop.training.memory.channels_last import match_state_layout
from trueloop.training.optimizers.schedule import Schedule
from trueloop.training.seeding import capture_generators, restore_generators, seed_process


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
    measured_at: int = -1
    """The update after which `metrics` were measured: they say nothing about later weights."""


class ResumeNotice(NamedTuple):
    """Something to note about how a run was resumed; see `seams.Noted`."""

    kind: str
    message: str
    details: Mapping[str, Any]


class RunState:
    """The state of a run between two updates.

    Args:
        parts: what the loop turns.
        monitor: what is best so far.
        order: how the epoch in hand was opened.
    """

    def __init__(self, parts: Assembly, monitor: Monitor, order: EpochOrder) -> None:
        self.parts = parts
        self.monitor = monitor
        self.order = order
        self.position = Position()
        self.identity: Identity = {}
        """What makes the run this run; saved with it, and compared with before it is resumed."""

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state; its tensors are the live ones. Called on every process, the same on each."""
        parts = self.parts
        generators = parts.parallel.processes.all_gather_object(capture_generators())
        return {
            "model": parts.model.state_dict(),
            "optimizer": parts.optimizer.state_dict(),
            "schedule": parts.schedule.state_dict(),
            "scale": parts.scale.state_dict(),
            "average": parts.average.state_dict() if parts.average else None,
            "guard": parts.guard.state_dict(),
            "halving": parts.oom_retry.state_dict(),
            "compiled": parts.compiled_step.state_dict() if parts.compiled_step else None,
            "monitor": self.monitor.state_dict(),
            "generators": generators[0],
            "other_generators": generators[1:],
            "order": self.order.state_dict(),
            "position": asdict(self.position),
            "identity": dict(self.identity),
        }

    def load_state_dict(self, state: Mapping[str, Any], changed: Differences | None = None) -> None:
        """Take over a saved state; the run goes on as if it had never stopped.

        Args:
            state: as `state_dict` gave it.
            changed: what the user changed meanwhile and wants; of what no longer fits, the present run's own is kept.

        Raises:
            CheckpointError: the saved weights do not fit the model, or the optimizer.
        """
        changed = changed or Differences()
        parts = self.parts
        try:
            self._load_model(state["model"])
            self._load_optimizer(state, changed)
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"The saved state does not fit this model: {error}",
                why="It is that of a model with other layers, or with other parameters frozen.",
                fix="Resume with the model of the run, or start over with --fresh (or in another folder).",
            ) from error
        if not changed.with_consequence("breaking") or not isinstance(parts.schedule, Schedule):  # ours only compares
            parts.schedule.load_state_dict(state["schedule"])
        if "precision" not in changed:
            parts.scale.load_state_dict(state["scale"])
        self._load_average(state)
        parts.guard.load_state_dict(state["guard"])
        if "micro_batch" not in changed and "halving" in state:  # else the user has chosen anew
            parts.oom_retry.load_state_dict(state["halving"])
        if parts.compiled_step and state.get("compiled"):
            parts.compiled_step.load_state_dict(state["compiled"])
        if "monitor.metric" not in changed and "monitor.mode" not in changed:
            self.monitor.load_state_dict(state["monitor"])
        self._restore_generators(state, changed)
        self.position = Position(**state["position"])
        if changed.changes_order:
            self.position.update_in_epoch = 0
        else:
            self.order.load_state_dict(state["order"])

    def _restore_generators(self, state: Mapping[str, Any], changed: Differences) -> None:
        """Put this process's generators back; one that the saved run did not have is given a stream of its own."""
        rank = self.parts.parallel.processes.rank
        saved = [state["generators"], *state.get("other_generators", ())]
        if rank >= len(saved):
            seed_process(self.identity.get("seed", 0), rank, state["position"]["update"])
            return
        elsewhere = {"cuda": [], "mps": None} if "on.device" in changed or "on.processes" in changed else {}
        restore_generators({**saved[rank], **elsewhere})

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Take over only the weights of a saved state, and their average where one is kept."""
        self._load_model(state["model"])
        self._load_average(state)

    def _load_model(self, weights: Mapping[str, Any]) -> None:
        """Take over a model's state; one that is whole is cut up where the model is sharded."""
        model, kept = self.parts.model, getattr(weights, "_metadata", None)
        cut = OrderedDict(shard_state_like(model.state_dict(), weights))
        cut._metadata = kept  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue] - versions of its modules
        model.load_state_dict(cut)

    def _load_average(self, state: Mapping[str, Any]) -> None:
        average = self.parts.average
        if average is None:
            return
        live = self.parts.model.state_dict()  # where an average begins that the saved run did not keep
        average.load_state_dict(state["average"] or {name: live[name] for name in average.state_dict()})

    def resume(self, state: Mapping[str, Any], epochs: int, *, allow_change: bool = False) -> list[ResumeNotice]:
        """Take over a saved state to train until ``epochs``.

        Args:
            state: as `state_dict` gave it.
            epochs: in all, those done included.
            allow_change: go on as another run, where the two differ.

        Returns:
            What a person should know about it; the first says where the run continues.

        Raises:
            InvalidConfig: more than ``epochs`` are done already.
            CheckpointError: the state is another run's.
        """
        saved: Identity = state.get("identity") or {}
        changed = compare(saved, self.identity) if saved else Differences()
        if not allow_change:
            changed.raise_if_breaking()
        at = Position(**state["position"])
        if at.epoch + (at.update_in_epoch > 0) > epochs:
            raise InvalidConfig(
                f"epochs is {epochs}, but the run in this folder has already done {at.update} updates and is in "
                f"epoch {at.epoch + 1}.",
                why="Training cannot be taken back.",
                fix="Ask for more epochs, or start over with --fresh (or in another folder).",
            )
        moved = self._describe_horizon_change(state["schedule"], at.update)
        self.load_state_dict(state, changed)
        begun = changed.changes_order and at.update_in_epoch > 0
        again = f"; epoch {at.epoch + 1} begins anew, as its order has changed" if begun else ""
        harmless = {"changed": [str(each) for each in changed.with_consequence("harmless")]}
        return [
            ResumeNotice("resumed", f"Continues after update {at.update}{moved}{again}.", harmless),
            *_change_notices(changed, known=bool(saved) or not self.identity),
            *self._reduce_order_notice(changed),
        ]

    def _reduce_order_notice(self, changed: Differences) -> list[ResumeNotice]:
        """Say that three or more processes add up in another order at first: two numbers have only one sum."""
        size = self.parts.parallel.processes.size
        if size < 3 or self.identity.get("parallel.engine") != "ddp" or changed.with_consequence("inexact"):
            return []
        sentence = (
            f"DDP adds the gradients of {size} processes up in another order in its first two windows than later, so "
            "the weights are those of the undisturbed run but for rounding."
        )
        return [ResumeNotice("resumed_inexact", sentence, {})]

    def _load_optimizer(self, state: Mapping[str, Any], changed: Differences) -> None:
        """Take over moments and counters; the settings of the groups too, unless they are what was changed."""
        if "optim.name" in changed or "optimizer" in changed:
            return
        optimizer = self.parts.optimizer
        # A scheduler of the user's own counts from the rates it left behind; ours writes them before every update.
        kept = {"params"} if isinstance(self.parts.schedule, Schedule) else {"params", "lr", "initial_lr"}
        present = [{key: group[key] for key in group.keys() - kept} for group in optimizer.param_groups]
        optimizer.load_state_dict(dict(shard_optimizer_state(optimizer, state["optimizer"])))
        match_state_layout(optimizer)
        if changed.with_consequence("breaking"):
            for group, settings in zip(optimizer.param_groups, present, strict=True):
                group.update(settings)

    def _describe_horizon_change(self, saved: Mapping[str, Any], update: int) -> str:
        """Say what a longer (or shorter) schedule does to the rate at ``update``; called with a fresh optimizer."""
        schedule = self.parts.schedule
        if not isinstance(schedule, Schedule):
            return ""
        present = schedule.state_dict()
        before, now = saved.get("updates"), present["updates"]
        settings = ScheduleConfig(**present["config"])
        if before == now or before is None or now is None or settings.name in ("constant", "step"):
            return ""
        old = Schedule(self.parts.optimizer, settings, updates=before, updates_per_epoch=present["updates_per_epoch"])
        return (
            f"; the schedule ends at update {now}, no longer at {before}, so the rate is {schedule.factor(update):.3g} "
            f"of its peak here and not {old.factor(update):.3g} (schedule.horizon_epochs keeps its end where it was)"
        )

    def shipped_weights(self) -> dict[str, Tensor]:
        """Return a copy of the model's state as it is evaluated: averaged where an average is kept, tied where tied.

        Of a sharded model, every process has its part; see `shards.whole`.
        """
        parts, copies = self.parts, dict[tuple[int, ...], Tensor]()
        with parts.average.applied() if parts.average else nullcontext():
            live = {name: value.detach() for name, value in parts.model.state_dict().items()}
            for value in live.values():
                copies.setdefault(memory_key(value), value.clone())
            return {name: copies[memory_key(value)] for name, value in live.items()}


def _change_notices(changed: Differences, *, known: bool) -> list[ResumeNotice]:
    remarks: list[ResumeNotice] = []
    if not known:
        sentence = "The checkpoint does not say what it was trained with, so nothing could be compared."
        remarks.append(ResumeNotice("resumed_inexact", sentence, {}))
    if inexact := [str(each) for each in changed.with_consequence("inexact")]:
        sentence = f"The same run, but from here on not to the bit: {'; '.join(inexact)}."
        remarks.append(ResumeNotice("resumed_inexact", sentence, {"changed": inexact}))
    if breaking := [str(each) for each in changed.with_consequence("breaking")]:
        sentence = f"Goes on as another run, as asked: {'; '.join(breaking)}."
        remarks.append(ResumeNotice("resumed_changed", sentence, {"changed": breaking}))
    return remarks
