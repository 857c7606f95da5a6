"""The content of a checkpoint: everything that a run needs to continue, as one tree of tensors and numbers."""

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
    """How far a run has been trained, and its latest metrics."""

    epoch: int = 0
    """Number of epochs completed."""
    update: int = 0
    """Number of updates done in the run, including skipped ones."""
    update_in_epoch: int = 0
    """Number of updates done in the current epoch."""
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    """Metrics of the latest evaluation, by "split/name"."""
    measured_at: int = -1
    """Number of updates done when `metrics` were measured: they do not apply to later weights."""


class ResumeNotice(NamedTuple):
    """A message about how a run was resumed; see `protocols.Notice`."""

    kind: str
    message: str
    details: Mapping[str, Any]


class RunState:
    """The state of a run between two updates.

    Args:
        assembly: the assembled run.
        monitor: monitor with the best evaluation so far.
        order: state of the data source when the current epoch was opened.
    """

    def __init__(self, assembly: Assembly, monitor: Monitor, order: EpochOrder) -> None:
        self.assembly = assembly
        self.monitor = monitor
        self.order = order
        self.position = Position()
        self.identity: Identity = {}
        """Identity of this run; saved in its checkpoints, and compared before it is resumed."""

    def state_dict(self) -> dict[str, Any]:
        """Return the full state, the same on every process; all have to call this. Tensors are not copied."""
        assembly = self.assembly
        generators = assembly.parallel.processes.all_gather_object(capture_generators())
        return {
            "model": assembly.model.state_dict(),
            "optimizer": assembly.optimizer.state_dict(),
            "schedule": assembly.schedule.state_dict(),
            "scale": assembly.scale.state_dict(),
            "average": assembly.average.state_dict() if assembly.average else None,
            "guard": assembly.guard.state_dict(),
            "oom_retry": assembly.oom_retry.state_dict(),
            "compiled": assembly.compiled_step.state_dict() if assembly.compiled_step else None,
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
            changed: differences from the saved run; saved state that does not fit them is ignored.

        Raises:
            CheckpointError: the saved state does not fit the model or the optimizer.
        """
        changed = changed or Differences()
        assembly = self.assembly
        try:
            self._load_model(state["model"])
            self._load_optimizer(state, changed)
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"The saved state does not fit this model: {error}",
                why="The saved model has other layers or other frozen parameters.",
                fix="Resume with the model of the run, or start over with --fresh (or in another folder).",
            ) from error
        own_schedule = isinstance(assembly.schedule, Schedule)  # which only compares the saved state with its settings
        if not own_schedule or not changed.with_consequence("breaking"):
            assembly.schedule.load_state_dict(state["schedule"])
        if "precision" not in changed:
            assembly.scale.load_state_dict(state["scale"])
        self._load_average(state)
        assembly.guard.load_state_dict(state["guard"])
        if "micro_batch" not in changed and "oom_retry" in state:  # a changed micro_batch replaces the saved limit
            assembly.oom_retry.load_state_dict(state["oom_retry"])
        if assembly.compiled_step and state.get("compiled"):
            assembly.compiled_step.load_state_dict(state["compiled"])
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
        rank = self.assembly.parallel.processes.rank
        saved = [state["generators"], *state.get("other_generators", ())]
        if rank >= len(saved):
            seed_process(self.identity.get("seed", 0), rank, state["position"]["update"])
            return
        no_gpu_state = {"cuda": [], "mps": None} if "on.device" in changed or "on.processes" in changed else {}
        restore_generators({**saved[rank], **no_gpu_state})

    def load_weights(self, state: Mapping[str, Any]) -> None:
        """Restore only the weights of a saved state, and their average if the run averages weights."""
        self._load_model(state["model"])
        self._load_average(state)

    def _load_model(self, weights: Mapping[str, Any]) -> None:
        """Restore a model's state; full tensors are sharded if the model is."""
        model, metadata = self.assembly.model, getattr(weights, "_metadata", None)
        local = OrderedDict(shard_state_like(model.state_dict(), weights))
        local._metadata = metadata  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue] - module versions
        model.load_state_dict(local)

    def _load_average(self, state: Mapping[str, Any]) -> None:
        average = self.assembly.average
        if average is None:
            return
        current = self.assembly.model.state_dict()  # where the average starts if the saved run had none
        average.load_state_dict(state["average"] or {name: current[name] for name in average.state_dict()})

    def resume(self, state: Mapping[str, Any], epochs: int, *, allow_change: bool = False) -> list[ResumeNotice]:
        """Restore a saved state to train until ``epochs``.

        Args:
            state: from `state_dict`.
            epochs: number of epochs to train in total, including those done.
            allow_change: continue even if the state belongs to another run.

        Returns:
            Messages to the user; the first one says where the run continues.

        Raises:
            InvalidConfig: more than ``epochs`` epochs are done.
            CheckpointError: the state belongs to another run.
        """
        saved: Identity = state.get("identity") or {}
        changed = compare(saved, self.identity) if saved else Differences()
        if not allow_change:
            changed.raise_if_breaking()
        saved_at = Position(**state["position"])
        if saved_at.epoch + (saved_at.update_in_epoch > 0) > epochs:
            raise InvalidConfig(
                f"epochs is {epochs}, but the run in this folder has already done {saved_at.update} updates and is in "
                f"epoch {saved_at.epoch + 1}.",
                why="Finished training cannot be undone.",
                fix="Set more epochs, or start over with --fresh (or in another folder).",
            )
        horizon = self._describe_horizon_change(state["schedule"], saved_at.update)
        self.load_state_dict(state, changed)
        restarts = changed.changes_order and saved_at.update_in_epoch > 0
        restart = f"; epoch {saved_at.epoch + 1} restarts, because its order has changed" if restarts else ""
        harmless = {"changed": [str(each) for each in changed.with_consequence("harmless")]}
        return [
            ResumeNotice("resumed", f"The run continues after update {saved_at.update}{horizon}{restart}.", harmless),
            *_change_notices(changed, has_settings=bool(saved) or not self.identity),
            *self._reduce_order_notice(changed),
        ]

    def _reduce_order_notice(self, changed: Differences) -> list[ResumeNotice]:
        """Report that the first sums of three or more processes are rounded differently; those of two are not."""
        size = self.assembly.parallel.processes.size
        if size < 3 or self.identity.get("parallel.engine") != "ddp" or changed.with_consequence("inexact"):
            return []
        sentence = (
            f"DDP sums the gradients of {size} processes in another order in its first two windows than later, so the "
            "weights differ from those of the uninterrupted run by rounding."
        )
        return [ResumeNotice("resumed_inexact", sentence, {})]

    def _load_optimizer(self, state: Mapping[str, Any], changed: Differences) -> None:
        """Restore moments and counters, and the settings of the groups unless the user changed them."""
        if "optim.name" in changed or "optimizer" in changed:
            return
        optimizer = self.assembly.optimizer
        # A user's scheduler computes a rate from the previous one; `Schedule` sets the rate before every update.
        always_restored = {"params"} if isinstance(self.assembly.schedule, Schedule) else {"params", "lr", "initial_lr"}
        configured = [{key: group[key] for key in group.keys() - always_restored} for group in optimizer.param_groups]
        optimizer.load_state_dict(dict(shard_optimizer_state(optimizer, state["optimizer"])))
        match_state_layout(optimizer)
        if changed.with_consequence("breaking"):
            for group, settings in zip(optimizer.param_groups, configured, strict=True):
                group.update(settings)

    def _describe_horizon_change(self, saved: Mapping[str, Any], update: int) -> str:
        """Describe how a longer or shorter schedule changes the rate at ``update``; called before loading."""
        schedule = self.assembly.schedule
        if not isinstance(schedule, Schedule):
            return ""
        current = schedule.state_dict()
        old_end, end = saved.get("updates"), current["updates"]
        settings = ScheduleConfig(**current["config"])
        if old_end == end or old_end is None or end is None or settings.name in ("constant", "step"):
            return ""
        old = Schedule(
            self.assembly.optimizer, settings, updates=old_end, updates_per_epoch=current["updates_per_epoch"]
        )
        return (
            f"; the schedule ends at update {end} instead of {old_end}, so the rate is {schedule.factor(update):.3g} "
            f"of its peak here instead of {old.factor(update):.3g} (schedule.horizon_epochs keeps the old end)"
        )

    def shipped_weights(self) -> dict[str, Tensor]:
        """Return a copy of the model's state, averaged if the run averages weights; tied weights stay tied.

        If the model is sharded, every process returns its part; see `sharded.gather_full_tensors`.
        """
        assembly, copies = self.assembly, dict[tuple[int, ...], Tensor]()
        with assembly.average.swapped_in() if assembly.average else nullcontext():
            current = {name: value.detach() for name, value in assembly.model.state_dict().items()}
            for value in current.values():
                copies.setdefault(memory_key(value), value.clone())
            return {name: copies[memory_key(value)] for name, value in current.items()}


def _change_notices(changed: Differences, *, has_settings: bool) -> list[ResumeNotice]:
    notices: list[ResumeNotice] = []
    if not has_settings:
        sentence = "The checkpoint does not contain its settings, so nothing could be compared."
        notices.append(ResumeNotice("resumed_inexact", sentence, {}))
    if inexact := [str(each) for each in changed.with_consequence("inexact")]:
        sentence = f"The run is the same, but no longer bitwise equal to the uninterrupted one: {'; '.join(inexact)}."
        notices.append(ResumeNotice("resumed_inexact", sentence, {"changed": inexact}))
    if breaking := [str(each) for each in changed.with_consequence("breaking")]:
        sentence = f"The run continues with other settings, as requested: {'; '.join(breaking)}."
        notices.append(ResumeNotice("resumed_changed", sentence, {"changed": breaking}))
    return notices
