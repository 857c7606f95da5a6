"""Everything a run's future depends on, as one tree of tensors and numbers: the content of a checkpoint."""

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
    """Number of epochs and updates done; the part of the state that is plain numbers."""

    epoch: int = 0
    """Epochs completed."""
    update: int = 0
    """Updates done in the whole run, skipped ones included."""
    update_in_epoch: int = 0
    """Updates done in the current epoch."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """The newest evaluation, by "split/name"."""
    measured_at: int = -1
    """The update after which `metrics` were measured: they do not apply to later weights."""


class ResumeNotice(NamedTuple):
    """A message about how a run was resumed; see `protocols.Notice`."""

    kind: str
    message: str
    details: Mapping[str, Any]


class RunState:
    """The state of a run between two updates.

    Args:
        parts: the assembled run.
        monitor: the best evaluation so far.
        order: how the current epoch was opened.
    """

    def __init__(self, parts: Assembly, monitor: Monitor, order: EpochOrder) -> None:
        self.parts = parts
        self.monitor = monitor
        self.order = order
        self.position = Position()
        self.identity: Identity = {}
        """Identity of this run; saved with it, and compared before it is resumed."""

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, with the live tensors. Called on every process; the same on each."""
        parts = self.parts
        generators = parts.parallel.processes.all_gather_object(capture_generators())
        return {
            "model": parts.model.state_dict(),
            "optimizer": parts.optimizer.state_dict(),
            "schedule": parts.schedule.state_dict(),
            "scale": parts.scale.state_dict(),
            "average": parts.average.state_dict() if parts.average else None,
            "guard": parts.guard.state_dict(),
            "oom_retry": parts.oom_retry.state_dict(),
            "compiled": parts.compiled_step.state_dict() if parts.compiled_step else None,
            "monitor": self.monitor.state_dict(),
            "generators": generators[0],
            "other_generators": generators[1:],
            "order": self.order.state_dict(),
            "position": asdict(self.position),
            "identity": dict(self.identity),
        }

    def load_state_dict(self, state: Mapping[str, Any], changed: Differences | None = None) -> None:
        """Restore a saved state; the run continues as if it had never stopped.

        Args:
            state: from `state_dict`.
            changed: what the user changed on purpose; where the saved state no longer fits, the present run's is kept.

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
                why="It belongs to a model with other layers, or with other frozen parameters.",
                fix="Resume with the model of the run, or start over with --fresh (or in another folder).",
            ) from error
        own_schedule = isinstance(parts.schedule, Schedule)  # only compares the saved state with its settings
        if not own_schedule or not changed.with_consequence("breaking"):
            parts.schedule.load_state_dict(state["schedule"])
        if "precision" not in changed:
            parts.scale.load_state_dict(state["scale"])
        self._load_average(state)
        parts.guard.load_state_dict(state["guard"])
        if "micro_batch" not in changed and "oom_retry" in state:  # else the user has set a new one
            parts.oom_retry.load_state_dict(state["oom_retry"])
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
        """Restore this process's generators; a process that the saved run did not have gets a new stream."""
        rank = self.parts.parallel.processes.rank
        saved = [state["generators"], *state.get("other_generators", ())]
        if rank >= len(saved):
            seed_process(self.identity.get("seed", 0), rank, state["position"]["update"])
            return
        elsewhere = {"cuda": [], "mps": None} if "on.device" in changed or "on.processes" in changed else {}
        restore_generators({**saved[rank], **elsewhere})

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Restore only the weights of a saved state, and their average where one is kept."""
        self._load_model(state["model"])
        self._load_average(state)

    def _load_model(self, weights: Mapping[str, Any]) -> None:
        """Restore a model's state; full tensors are sharded where the model is."""
        model, kept = self.parts.model, getattr(weights, "_metadata", None)
        cut = OrderedDict(shard_state_like(model.state_dict(), weights))
        cut._metadata = kept  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue] - versions of its modules
        model.load_state_dict(cut)

    def _load_average(self, state: Mapping[str, Any]) -> None:
        average = self.parts.average
        if average is None:
            return
        live = self.parts.model.state_dict()  # the start of an average that the saved run did not keep
        average.load_state_dict(state["average"] or {name: live[name] for name in average.state_dict()})

    def resume(self, state: Mapping[str, Any], epochs: int, *, allow_change: bool = False) -> list[ResumeNotice]:
        """Restore a saved state to train until ``epochs``.

        Args:
            state: from `state_dict`.
            epochs: total number, including those done.
            allow_change: continue as another run, where the two differ.

        Returns:
            Notices for a person; the first says where the run continues.

        Raises:
            InvalidConfig: more than ``epochs`` epochs are done.
            CheckpointError: the state belongs to another run.
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
                why="Finished training cannot be undone.",
                fix="Set more epochs, or start over with --fresh (or in another folder).",
            )
        moved = self._describe_horizon_change(state["schedule"], at.update)
        self.load_state_dict(state, changed)
        restarts = changed.changes_order and at.update_in_epoch > 0
        again = f"; epoch {at.epoch + 1} restarts, as its order has changed" if restarts else ""
        harmless = {"changed": [str(each) for each in changed.with_consequence("harmless")]}
        return [
            ResumeNotice("resumed", f"Continues after update {at.update}{moved}{again}.", harmless),
            *_change_notices(changed, known=bool(saved) or not self.identity),
            *self._reduce_order_notice(changed),
        ]

    def _reduce_order_notice(self, changed: Differences) -> list[ResumeNotice]:
        """Report that three or more processes sum in another order at first; with two the order does not matter."""
        size = self.parts.parallel.processes.size
        if size < 3 or self.identity.get("parallel.engine") != "ddp" or changed.with_consequence("inexact"):
            return []
        sentence = (
            f"DDP sums the gradients of {size} processes in another order in its first two windows than later, so the "
            "weights equal those of the uninterrupted run except for rounding."
        )
        return [ResumeNotice("resumed_inexact", sentence, {})]

    def _load_optimizer(self, state: Mapping[str, Any], changed: Differences) -> None:
        """Restore moments and counters; the settings of the groups too, unless the user changed them."""
        if "optim.name" in changed or "optimizer" in changed:
            return
        optimizer = self.parts.optimizer
        # A user's scheduler counts from the rates it has set; trueloop's own sets them before every update.
        kept = {"params"} if isinstance(self.parts.schedule, Schedule) else {"params", "lr", "initial_lr"}
        present = [{key: group[key] for key in group.keys() - kept} for group in optimizer.param_groups]
        optimizer.load_state_dict(dict(shard_optimizer_state(optimizer, state["optimizer"])))
        match_state_layout(optimizer)
        if changed.with_consequence("breaking"):
            for group, settings in zip(optimizer.param_groups, present, strict=True):
                group.update(settings)

    def _describe_horizon_change(self, saved: Mapping[str, Any], update: int) -> str:
        """Describe what a longer (or shorter) schedule does to the rate at ``update``; needs a fresh optimizer."""
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
            f"of its peak here and not {old.factor(update):.3g} (schedule.horizon_epochs keeps the old end)"
        )

    def shipped_weights(self) -> dict[str, Tensor]:
        """Return a copy of the model's state as evaluated: averaged where an average is kept, tied where tied.

        Of a sharded model, every process returns its part; see `sharded.gather_full_tensors`.
        """
        parts, copies = self.parts, dict[tuple[int, ...], Tensor]()
        with parts.average.applied() if parts.average else nullcontext():
            live = {name: value.detach() for name, value in parts.model.state_dict().items()}
            for value in live.values():
                copies.setdefault(memory_key(value), value.clone())
            return {name: copies[memory_key(value)] for name, value in live.items()}


def _change_notices(changed: Differences, *, known: bool) -> list[ResumeNotice]:
    notices: list[ResumeNotice] = []
    if not known:
        sentence = "The checkpoint does not contain its settings, so nothing could be compared."
        notices.append(ResumeNotice("resumed_inexact", sentence, {}))
    if inexact := [str(each) for each in changed.with_consequence("inexact")]:
        sentence = f"The same run, but no longer bitwise: {'; '.join(inexact)}."
        notices.append(ResumeNotice("resumed_inexact", sentence, {"changed": inexact}))
    if breaking := [str(each) for each in changed.with_consequence("breaking")]:
        sentence = f"Continues as another run, as requested: {'; '.join(breaking)}."
        notices.append(ResumeNotice("resumed_changed", sentence, {"changed": breaking}))
    return notices
