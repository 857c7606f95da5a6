"""Finds settings that make a recipe fast and leave its meaning alone: each is tried on the recipe itself."""

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
MIN_SPEEDUP: Final = 1.05  # times as fast, for a setting other than the one there is: less is noise on most machines
MIN_WAITING_SHARE: Final = (
    0.01  # share of the time spent waiting for data that no further loader process could win back
)
MICRO_BATCHES_PER_WINDOW: Final = (1, 2, 4, 8, 16, 32, 64)  # micro-batches that a window is cut into


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One attempt."""

    setting: str
    """The one that is being tried; "" for the settings as they are."""
    value: Any
    throughput: Throughput | None
    """None where it could not be trained so."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """What was tried, and what is best."""

    trials: Sequence[Trial]
    chosen: Mapping[str, Any]
    """Settings that differ from the recipe's, by name."""
    before: Throughput | None
    """None where the recipe's own micro-batch does not fit into the memory."""
    after: Throughput
    largest_micro_batch: int | None = None
    """The largest micro-batch found to fit, at most the effective batch; None where none was tried."""
    not_tried: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings that were not tried, and why."""


def tune_recipe(
    recipe: Recipe, *, seconds: float, compiled: bool, on_trial: Callable[[Trial], None] = lambda trial: None
) -> TuningResult:
    """Try settings one after the other, each with the best of those before.

    Tried are threads (on the CPU), the micro-batch, loader processes and, where asked for, compiling: none of them
    changes what is learnt but for rounding. The effective batch, the precision and the optimizer are the recipe's.
    Where the recipe's own micro-batch does not fit into the memory, smaller ones are tried until one does.

    Args:
        recipe: with its overrides applied; its data is read once.
        seconds: each attempt is measured for.
        compiled: try to compile the model, which takes a minute.
        on_trial: called after each attempt.

    Raises:
        InvalidConfig: no time at all.
        OutOfMemory: no micro-batch fits that leaves the run what it is.
        TrueloopError: the recipe cannot be trained as it is.
    """
    if not seconds > 0:
        raise InvalidConfig(f"seconds is {seconds:g}.", fix="Give each attempt some time: --seconds 2.")
    tuning = _Tuner(recipe, seconds, on_trial)
    fits = tuning.measure_baseline()
    if not fits:
        tuning.shrink_micro_batch()
    if resolve_device(tuning.config.device).type == "cpu":
        tuning.try_values("threads", _thread_counts())
    else:
        tuning.not_tried["threads"] = "the model is not on the CPU"
    if fits:
        tuning.choose_micro_batch()
    tuning.choose_workers()
    if compiled:
        tuning.try_values("compile", [True])
    else:
        tuning.not_tried["compile"] = "only with --compiled: it takes a minute"
    return tuning.result()


class _Tuner:
    """The best so far."""

    def __init__(self, recipe: Recipe, seconds: float, on_trial: Callable[[Trial], None]) -> None:
        validate(recipe.train)
        self._seconds, self._on_trial = seconds, on_trial
        steady = ScheduleConfig(name="constant")
        self.config = self._own_config = replace(recipe.train, schedule=steady)
        prepare_generators(recipe.train)
        self.parts: Parts = recipe.assemble(recipe.options)
        self.trials: list[Trial] = []
        self.chosen: dict[str, Any] = {}
        self.not_tried: dict[str, str] = {}
        self.best: Throughput | None = None
        self._fits = True
        self._memory_error: OutOfMemory

    def measure_baseline(self) -> bool:
        """Measure the settings as they are, once the process is warm; False where they do not fit into the memory.

        What else goes wrong with them is not ours to hide.
        """
        try:
            self._measure(self.config)
            self.best = self._measure(self.config)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            self._fits, self._memory_error = False, _to_lesson(error)
        self._record(
            Trial(setting="", value=None, throughput=self.best, problem="" if self.best else OUT_OF_MEMORY_PROBLEM)
        )
        return self.best is not None

    def shrink_micro_batch(self) -> None:
        """Halve the micro-batch until it fits.

        Raises:
            OutOfMemory: it never does, or may not be touched.
        """
        size = 1 if self._uses_batch_norm() else self._micro_batch
        while self.best is None and size > 1:
            size = -(-size // 2)
            self.try_values("micro_batch", [size])
        if self.best is None:
            raise self._memory_error

    def choose_micro_batch(self) -> None:
        """Try what the window can be cut into."""
        if not self._uses_batch_norm():
            self.try_values("micro_batch", _micro_batch_sizes(self.config.effective_batch))

    def choose_workers(self) -> None:
        """Try more and more loader processes, until training no longer waits for data."""
        waiting = self.best.waiting if self.best else 1.0
        if waiting < MIN_WAITING_SHARE:
            self.not_tried["workers"] = f"training waits for data {100 * waiting:.1f} % of the time"
            return
        self.try_values("workers", _worker_counts(), is_enough=lambda pace: pace.waiting < MIN_WAITING_SHARE)

    def try_values(
        self, setting: str, values: Sequence[Any], is_enough: Callable[[Throughput], bool] = lambda pace: False
    ) -> None:
        """Try some values of a setting; keep one that is worth it, and stop where one is good enough."""
        current = self._micro_batch if setting == "micro_batch" else getattr(self.config, setting)
        for value in values:
            if value == current:
                continue
            config = replace(self.config, **{setting: value})
            pace = self._try(setting, value, config).throughput
            if pace and (self.best is None or pace.examples_per_s > MIN_SPEEDUP * self.best.examples_per_s):
                self.best, self.config, self.chosen[setting] = pace, config, value
            if pace and is_enough(pace):
                return

    def result(self) -> TuningResult:
        """Measure once more, side by side, the settings as they were and the best; drop what was a lucky moment."""
        before = self._measure(self._own_config) if self._fits else None
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
            largest_micro_batch=self._largest(),
            not_tried=self.not_tried,
        )

    def _largest(self) -> int | None:
        tried = [each.value for each in self.trials if each.setting == "micro_batch" and each.throughput]
        own = [self._own_config.micro_batch or self._own_config.effective_batch] if self._fits else []
        return max([*tried, *own], default=None)

    @property
    def _micro_batch(self) -> int:
        return self.config.micro_batch or self.config.effective_batch

    def _uses_batch_norm(self) -> bool:
        """Say so where another micro-batch would not be the same run."""
        if normalised := has_active_batchnorm(self.parts.model):
            self.not_tried["micro_batch"] = (
                "batch normalisation sees one micro-batch at a time, so another one learns otherwise"
            )
        return normalised

    def _try(self, setting: str, value: Any, config: TrainConfig) -> Trial:
        try:
            trial = Trial(setting=setting, value=value, throughput=self._measure(config))
        except (TrueloopError, RuntimeError) as error:  # what compiles here may lack a compiler there
            problem = f"{error}".partition("\n")[0]
            if _is_out_of_memory(error):
                problem, self._memory_error = OUT_OF_MEMORY_PROBLEM, _to_lesson(error)
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


def _to_lesson(error: Exception) -> OutOfMemory:
    """Return the lesson without the frames of its failure, which hold memory."""
    if isinstance(error, OutOfMemory):
        return error.with_traceback(None)
    said = str(error).partition("\n")[0]
    return OutOfMemory("The recipe does not fit into the memory.", why=f"torch said: {said}", fix=REMEDIES)


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


def _micro_batch_sizes(effective: int) -> list[int]:
    """Return sizes that cut a window into 1, 2, 4 ... parts, the largest first."""
    return list(dict.fromkeys(-(-effective // parts) for parts in MICRO_BATCHES_PER_WINDOW if parts <= effective))
