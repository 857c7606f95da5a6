"""Compute the learning rate of every update as a pure function of the update's index.

A schedule that counts its own steps can be stepped twice, resumed at a wrong step, or stepped per micro-batch. This
one computes the rate from the index of the update, so resuming needs only the index.
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final, Protocol, cast

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from trueloop.core.errors import CheckpointError, InvalidConfig
from trueloop.training.config import ScheduleConfig

ONECYCLE_WARMUP = 0.3  # default pct_start of OneCycleLR
START, END = 1 / 25, 1 / 25 / 1e4  # shares of the peak rate: 1 / div_factor, and START / final_div_factor
MOMENTUM_HIGH, MOMENTUM_LOW = 0.95, 0.85  # default max_momentum and base_momentum


class RateSchedule(Protocol):
    """Interface of a schedule for the loop: `Schedule` or `UserSchedule`."""

    def set(self, update: int) -> None:
        """Set the learning rates of ``update`` (index from 0), before the optimizer steps."""
        ...

    def advance(self) -> None:
        """Advance by one update, whether the optimizer applied or skipped it."""
        ...

    def after_evaluation(self, value: float) -> None:
        """Receive the value of the monitored metric."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a checkpoint, or compare it with the settings."""
        ...


class Schedule:
    """Warm-up and one of five shapes over a known number of updates, without a step counter.

    Warm-up is the first ``W = round(warmup * updates)`` updates, where ``W`` is at most ``updates - 1``. Update
    ``u < W`` has the factor ``(u + 1) / (W + 1)``, so that no rate is 0, and update ``W`` has the peak rate. The shape
    covers the other ``n = updates - W`` updates, like
    ``SequentialLR([LinearLR(start_factor=1 / (W + 1), total_iters=W), shape], [W])`` with ``StepLR``,
    ``CosineAnnealingLR(T_max=n)`` or ``LinearLR(total_iters=n)``; the last two end at ``floor``. ``onecycle`` is
    ``OneCycleLR`` with its defaults, including momentum if the optimizer has one. It has its own rising phase instead
    of a warm-up: ``warmup`` is the share of all updates in this phase (``pct_start``; 0.3 if ``warmup`` is 0).

    After the last update the rate stays at its final value: ``floor`` of the peak for cosine and linear, so with
    ``floor=0`` the weights no longer change. ``step`` and ``constant`` have no end and continue unchanged.

    Args:
        optimizer: optimizer whose groups' ``lr`` are the peak rates, read once, by the constructor.
        config: shape, warm-up share and floor, checked by `validate`.
        updates: number of updates in the run; None if the data has no known length.
        updates_per_epoch: number of windows in one epoch, needed by ``step``; None if unknown.

    Raises:
        InvalidConfig: a peak rate is not positive, or the shape needs a number of updates that is unknown.

    Source: Loshchilov & Hutter, 2017, arXiv:1608.03983 (cosine); Smith & Topin, 2018, arXiv:1708.07120 (onecycle).
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        config: ScheduleConfig,
        *,
        updates: int | None,
        updates_per_epoch: int | None,
    ) -> None:
        self._optimizer: Final = optimizer
        self._config: Final = config
        self._updates: Final = updates
        self._updates_per_epoch: Final = updates_per_epoch
        self._peak_rates: Final = [float(group["lr"]) for group in optimizer.param_groups]
        self._last_factor: float | None = None
        for rate in self._peak_rates:
            if not 0 < rate < math.inf:
                raise InvalidConfig(f"The learning rate is {rate}.", fix="Set a finite rate above 0.")
        _check_horizon(config, updates, updates_per_epoch)
        has_own_warmup = config.name == "onecycle"
        self._warmup: Final = 0 if has_own_warmup else min(round(config.warmup * (updates or 0)), (updates or 1) - 1)
        self._shape: Final[Callable[[int], float]] = {
            "constant": self._constant,
            "step": self._step,
            "cosine": self._cosine,
            "linear": self._linear,
            "onecycle": partial(self._onecycle, start=START, peak=1.0, end=END),
        }[config.name]

    def factor(self, update: int) -> float:
        """Return the rate of ``update`` (index from 0) as a share of the peak rate."""
        if update < self._warmup:
            return (update + 1) / (self._warmup + 1)
        return self._shape(update - self._warmup)

    def set(self, update: int) -> None:
        """Write the rates of ``update`` (index from 0) into the optimizer, before it steps.

        If ``lr`` is a tensor, it is filled in place, so that a captured graph reads the new rate.

        Cost: about a microsecond per group; does not wait for the GPU; unchanged rates are not written.
        """
        factor = self.factor(update)
        for group, peak in zip(self._optimizer.param_groups, self._peak_rates, strict=True):
            rate = peak * factor
            current = group["lr"]
            if isinstance(current, torch.Tensor):
                if factor != self._last_factor:  # comparing with the tensor would wait for the GPU
                    current.fill_(rate)
            elif current != rate:
                group["lr"] = rate
        self._last_factor = factor
        if self._config.name == "onecycle":
            self._set_momentum(self._onecycle(update, start=MOMENTUM_HIGH, peak=MOMENTUM_LOW, end=MOMENTUM_HIGH))

    def advance(self) -> None:
        """Do nothing: the rate is a function of the update's index."""

    def after_evaluation(self, value: float) -> None:
        """Do nothing: the rate does not depend on the metric."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that determines the rates, JSON-ready; the schedule has no position to save."""
        return {
            "config": {name: value for name, value in asdict(self._config).items() if name != "horizon_epochs"},
            "updates": self._updates,
            "updates_per_epoch": self._updates_per_epoch,
            "base_rates": self._peak_rates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that this schedule equals that of the checkpoint, except for its length.

        A run that is trained longer than planned continues with the longer schedule, at its rate for this update; the
        caller reports that.

        Raises:
            CheckpointError: the schedules differ; the message lists the differences.
        """
        self._last_factor = None
        current = self.state_dict()
        if differing := [key for key in current if key != "updates" and current[key] != state.get(key)]:
            raise CheckpointError(
                "The learning-rate schedule differs from the checkpoint's: "
                + "; ".join(f"{key} was {state.get(key)}, is {current[key]}" for key in differing)
                + ".",
                why="The rate would jump at the resumed update, and the run would be neither the old nor a new one.",
                fix="Resume with the settings of the run (the batch size sets the updates per epoch), or start over.",
            )

    def _constant(self, updates_after_warmup: int) -> float:  # one signature for all shapes
        return 1.0

    def _step(self, updates_after_warmup: int) -> float:
        interval = self._config.step_epochs * cast("int", self._updates_per_epoch)
        return self._config.gamma ** (updates_after_warmup // interval)

    def _progress(self, updates_after_warmup: int) -> float:
        return min(1.0, updates_after_warmup / (cast("int", self._updates) - self._warmup))

    def _cosine(self, updates_after_warmup: int) -> float:
        floor = self._config.floor
        return floor + (1 - floor) * (1 + math.cos(math.pi * self._progress(updates_after_warmup))) / 2

    def _linear(self, updates_after_warmup: int) -> float:
        return 1 - (1 - self._config.floor) * self._progress(updates_after_warmup)

    def _onecycle(self, update: int, *, start: float, peak: float, end: float) -> float:
        updates = cast("int", self._updates)
        peak_update = (self._config.warmup or ONECYCLE_WARMUP) * updates - 1  # may be fractional or negative
        if update < peak_update:
            return _anneal(start, peak, update / peak_update)
        return _anneal(peak, end, min(1.0, (update - peak_update) / (updates - 1 - peak_update)))

    def _set_momentum(self, momentum: float) -> None:
        for group in self._optimizer.param_groups:
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            elif "momentum" in group:
                group["momentum"] = momentum


class UserSchedule:
    """A torch scheduler of the user, stepped once per update after the optimizer's step.

    A ``ReduceLROnPlateau`` is instead stepped with the monitored metric after every evaluation.

    Raises:
        InvalidConfig: ``scheduler`` is not a torch scheduler.
    """

    def __init__(self, scheduler: LRScheduler) -> None:
        candidate = cast("object", scheduler)  # annotations are not enforced
        if not isinstance(candidate, LRScheduler):
            raise InvalidConfig(
                f"The schedule is a {type(candidate).__name__}, not a torch.optim.lr_scheduler.LRScheduler.",
                fix="Pass a scheduler that wraps the run's optimizer, or none and set `schedule` in the config.",
            )
        self.scheduler: Final = scheduler
        # Without this, torch warns of a wrong order if the first update is skipped and the optimizer does not step.
        scheduler.optimizer._opt_called = True  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

    def set(self, update: int) -> None:
        """Do nothing: the scheduler wrote the rates when it was stepped."""

    def advance(self) -> None:
        """Step the scheduler."""
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()

    def after_evaluation(self, value: float) -> None:
        """Step a ReduceLROnPlateau with the metric; other schedulers ignore it."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(value)

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's own state."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the scheduler's own state."""
        self.scheduler.load_state_dict(state)


def _anneal(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


def _check_horizon(config: ScheduleConfig, updates: int | None, updates_per_epoch: int | None) -> None:
    for name, count in (("updates", updates), ("updates_per_epoch", updates_per_epoch)):
        if count is not None and count < 1:
            raise InvalidConfig(f"The schedule has {count} {name}.", fix="Give it at least 1.")
    needs_end = config.warmup > 0 or config.name not in ("constant", "step")
    if needs_end and updates is None:
        setting = f"schedule.name = {config.name!r}" + (f" with warmup = {config.warmup}" if config.warmup else "")
        raise InvalidConfig(
            f"{setting} needs the number of updates, and the data has no known length.",
            why="The rate of an update depends on the number of updates until the end.",
            fix='Give the data a length, or set schedule.name = "constant" and schedule.warmup = 0.',
        )
    if config.name == "step" and updates_per_epoch is None:
        raise InvalidConfig(
            'schedule.name = "step" needs the number of updates per epoch, and the data has no known length.',
            fix='Give the data a length, or set schedule.name = "constant".',
        )
