"""Measure a recipe with different settings, to find those that make it faster without changing what it learns."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trueloop.app.training.trainer import Trainer
from trueloop.core.errors import InvalidConfig, OutOfMemory, TrueloopError
from trueloop.recipes.recipe import Parts, Recipe
from trueloop.training.config import ScheduleConfig, TrainConfig
from trueloop.training.memory.device import resolve_device
from trueloop.training.memory.device_memory import is_out_of_memory
from trueloop.training.memory.oom_retry import REMEDIES, has_active_batchnorm
from trueloop.training.profiling.pace import Throughput
from trueloop.training.seeding import prepare_generators
from trueloop.training.validate import validate

OUT_OF_MEMORY_PROBLEM: Final = "does not fit into the memory"
MIN_SPEEDUP: Final = 1.05  # smaller speedups are noise on most machines
MIN_WAITING_SHARE: Final = 0.01  # if training waits less for data, more loader processes cannot help
MICRO_BATCHES_PER_WINDOW: Final = (1, 2, 4, 8, 16, 32, 64)  # numbers of micro-batches to try


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One measured value of a setting."""

    setting: str
    """Name of the setting; "" = the measurement of the unchanged settings."""
    value: Any
    throughput: Throughput | None
    """The measured throughput; None if training failed."""
    problem: str = ""
    """Reason why training failed; "" if it did not fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """All trials, and the best settings."""

    trials: Sequence[Trial]
    chosen: Mapping[str, Any]
    """New values of the settings to change, by name."""
    before: Throughput | None
    """Throughput of the recipe's settings; None if its micro-batch does not fit into memory."""
    after: Throughput
    largest_micro_batch: int | None = None
    """The largest micro-batch that fit into memory, at most the effective batch; None if no micro-batch was tried."""
    not_tried: Mapping[str, str] = field(default_factory=dict[str, str])
    """Reason why a setting was not tried, by the name of the setting."""


def tune_recipe(
    recipe: Recipe, *, seconds: float, compiled: bool, on_trial: Callable[[Trial], None] = lambda trial: None
) -> TuningResult:
    """Try settings one after the other, each combined with the best settings so far.

    The settings are threads (on the CPU), the micro-batch, loader processes and, on request, compilation: except for
    rounding, none of them changes what is learned. The effective batch, precision and optimizer are not changed. If the
    recipe's micro-batch does not fit into memory, smaller ones are tried until one fits.

    Args:
        recipe: the recipe, with its overrides applied; its data is read once.
        seconds: length of each measurement.
        compiled: True to try compilation, which takes a minute.
        on_trial: function that is called after each trial.

    Raises:
        InvalidConfig: ``seconds`` is not positive.
        OutOfMemory: no micro-batch fits into memory without changing what the run learns.
        TrueloopError: the recipe cannot be trained.
    """
    if not seconds > 0:
        raise InvalidConfig(f"seconds is {seconds:g}.", fix="Pass a positive time per trial: --seconds 2.")
    tuning = _Tuner(recipe, seconds, on_trial)
    tuning.measure_baseline()
    if not tuning.recipe_fits:
        tuning.shrink_micro_batch()
    if resolve_device(tuning.config.device).type == "cpu":
        tuning.try_values("threads", _thread_counts())
    else:
        tuning.not_tried["threads"] = "the model is not on the CPU"
    if tuning.recipe_fits:
        tuning.choose_micro_batch()
    tuning.choose_workers()
    if compiled:
        tuning.try_values("compile", [True])
    else:
        tuning.not_tried["compile"] = "only with --compiled: it takes a minute"
    return tuning.result()


class _Tuner:
    """Tries settings and records the best settings so far."""

    def __init__(self, recipe: Recipe, seconds: float, on_trial: Callable[[Trial], None]) -> None:
        validate(recipe.train)
        self._seconds, self._on_trial = seconds, on_trial
        constant_rate = ScheduleConfig(name="constant")
        self.config = self._recipe_config = replace(recipe.train, schedule=constant_rate)
        prepare_generators(recipe.train)
        self.parts: Parts = recipe.assemble(recipe.options)
        self.trials: list[Trial] = []
        self.chosen: dict[str, Any] = {}
        self.not_tried: dict[str, str] = {}
        self.best: Throughput | None = None
        self.recipe_fits = True
        """False if the recipe's own micro-batch does not fit into memory."""
        self._memory_error: OutOfMemory | None = None
        """Error of the last measurement that did not fit into memory."""

    def measure_baseline(self) -> None:
        """Measure the unchanged settings after a warm-up; errors other than running out of memory are raised."""
        try:
            self._measure(self.config)
            self.best = self._measure(self.config)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            self.recipe_fits, self._memory_error = False, _as_out_of_memory(error)
        problem = "" if self.recipe_fits else OUT_OF_MEMORY_PROBLEM
        self._record(Trial(setting="", value=None, throughput=self.best, problem=problem))

    def shrink_micro_batch(self) -> None:
        """Halve the micro-batch until it fits into memory.

        Raises:
            OutOfMemory: no micro-batch fits, or the micro-batch must not be changed.
        """
        size = self._micro_batch if self._may_change_micro_batch() else 1
        while self.best is None and size > 1:
            size = -(-size // 2)
            self.try_values("micro_batch", [size])
        if self.best is None:
            assert self._memory_error is not None
            raise self._memory_error

    def choose_micro_batch(self) -> None:
        """Try micro-batch sizes that split the window into 1, 2, 4, ... micro-batches."""
        if self._may_change_micro_batch():
            self.try_values("micro_batch", _micro_batch_sizes(self.config.effective_batch))

    def choose_workers(self) -> None:
        """Try increasing numbers of loader processes until training no longer waits for data."""
        waiting = self.best.waiting if self.best else 1.0
        if waiting < MIN_WAITING_SHARE:
            self.not_tried["workers"] = f"training waits for data {100 * waiting:.1f} % of the time"
            return
        self.try_values("workers", _worker_counts(), is_enough=lambda pace: pace.waiting < MIN_WAITING_SHARE)

    def try_values(
        self, setting: str, values: Sequence[Any], is_enough: Callable[[Throughput], bool] = lambda pace: False
    ) -> None:
        """Try values of a setting; adopt each value that is faster than the best so far by `MIN_SPEEDUP`.

        Args:
            setting: name of the setting.
            values: values to try, in order.
            is_enough: function that returns True for a throughput after which no further value is tried.
        """
        current = self._micro_batch if setting == "micro_batch" else getattr(self.config, setting)
        for value in values:
            if value == current:
                continue
            config = replace(self.config, **{setting: value})
            throughput = self._try(setting, value, config).throughput
            if throughput is None:
                continue
            if self.best is None or throughput.examples_per_s > MIN_SPEEDUP * self.best.examples_per_s:
                self.best, self.config, self.chosen[setting] = throughput, config, value
            if is_enough(throughput):
                return

    def result(self) -> TuningResult:
        """Measure the original and the best settings again; discard changes that were faster only by chance."""
        before = self._measure(self._recipe_config) if self.recipe_fits else None
        after = self._measure(self.config)
        if before and after.examples_per_s <= before.examples_per_s:
            self.chosen.clear()
        if before and not self.chosen:
            after = before
        return TuningResult(
            trials=self.trials,
            chosen=self.chosen,
            before=before,
            after=after,
            largest_micro_batch=self._largest_micro_batch(),
            not_tried=self.not_tried,
        )

    def _largest_micro_batch(self) -> int | None:
        sizes = [each.value for each in self.trials if each.setting == "micro_batch" and each.throughput]
        if self.recipe_fits:
            sizes.append(self._recipe_config.micro_batch or self._recipe_config.effective_batch)
        return max(sizes, default=None)

    @property
    def _micro_batch(self) -> int:
        return self.config.micro_batch or self.config.effective_batch

    def _may_change_micro_batch(self) -> bool:
        """Return False if another micro-batch would change what is learned, and add the reason to `not_tried`."""
        if has_active_batchnorm(self.parts.model):
            reason = "BatchNorm depends on the micro-batch, so another micro-batch would change what is learned"
            self.not_tried["micro_batch"] = reason
        return "micro_batch" not in self.not_tried

    def _try(self, setting: str, value: Any, config: TrainConfig) -> Trial:
        try:
            trial = Trial(setting=setting, value=value, throughput=self._measure(config))
        except (TrueloopError, RuntimeError) as error:  # RuntimeError: compilation may fail on this machine
            problem = f"{error}".partition("\n")[0]
            if _is_out_of_memory(error):
                problem, self._memory_error = OUT_OF_MEMORY_PROBLEM, _as_out_of_memory(error)
            trial = Trial(setting=setting, value=value, throughput=None, problem=problem)
        self._record(trial)
        return trial

    def _record(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._on_trial(trial)

    def _measure(self, config: TrainConfig) -> Throughput:
        import torch

        parts, threads = self.parts, torch.get_num_threads()
        trainer = Trainer(model=copy.deepcopy(parts.model), objective=parts.objective, config=config)
        try:
            return trainer.measure_throughput(
                parts.train, collate=parts.collate, sampler=parts.sampler, labels=parts.labels, seconds=self._seconds
            )
        finally:
            torch.set_num_threads(threads)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, OutOfMemory) or is_out_of_memory(error)


def _as_out_of_memory(error: Exception) -> OutOfMemory:
    """Return the error as `OutOfMemory`, without its traceback, whose frames keep tensors alive."""
    if isinstance(error, OutOfMemory):
        return error.with_traceback(None)
    message = str(error).partition("\n")[0]
    return OutOfMemory("The recipe does not fit into memory.", why=f"PyTorch reported: {message}", fix=REMEDIES)


def _thread_counts() -> list[int]:
    return list(_powers_of_two(os.cpu_count() or 1))


def _worker_counts() -> list[int]:
    return [0, *_powers_of_two(max(1, (os.cpu_count() or 1) - 1))]


def _powers_of_two(limit: int) -> Iterator[int]:
    number = 1
    while number < limit:
        yield number
        number *= 2
    yield limit


def _micro_batch_sizes(effective_batch: int) -> list[int]:
    """Return the sizes that split a window into 1, 2, 4, ... micro-batches, largest first."""
    counts = [count for count in MICRO_BATCHES_PER_WINDOW if count <= effective_batch]
    return list(dict.fromkeys(-(-effective_batch // count) for count in counts))
