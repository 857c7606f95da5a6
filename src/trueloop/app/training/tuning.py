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

NO_ROOM: Final = "does not fit into the memory"
WORTH: Final = 1.05  # times as fast, for a setting other than the one there is: less is noise on most machines
VANISHES: Final = 0.01  # share of the time spent waiting for data that no further loader process could win back
CUTS: Final = (1, 2, 4, 8, 16, 32, 64)  # micro-batches that a window is cut into


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One attempt."""

    setting: str
    """The one that is being tried; "" for the settings as they are."""
    value: Any
    pace: Throughput | None
    """None where it could not be trained so."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What was tried, and what is best."""

    trials: Sequence[Trial]
    chosen: Mapping[str, Any]
    """Settings that differ from the recipe's, by name."""
    before: Throughput | None
    """None where the recipe's own micro-batch does not fit into the memory."""
    after: Throughput
    largest: int | None = None
    """The largest micro-batch found to fit, at most the effective batch; None where none was tried."""
    left_alone: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings that were not tried, and why."""


def tune_recipe(
    recipe: Recipe, *, seconds: float, compiled: bool, told: Callable[[Trial], None] = lambda trial: None
) -> Tuned:
    """Try settings one after the other, each with the best of those before.

    Tried are threads (on the CPU), the micro-batch, loader processes and, where asked for, compiling: none of them
    changes what is learnt but for rounding. The effective batch, the precision and the optimizer are the recipe's.
    Where the recipe's own micro-batch does not fit into the memory, smaller ones are tried until one does.

    Args:
        recipe: with its overrides applied; its data is read once.
        seconds: each attempt is measured for.
        compiled: try to compile the model, which takes a minute.
        told: called after each attempt.

    Raises:
        InvalidConfig: no time at all.
        OutOfMemory: no micro-batch fits that leaves the run what it is.
        TrueloopError: the recipe cannot be trained as it is.
    """
    if not seconds > 0:
        raise InvalidConfig(f"seconds is {seconds:g}.", fix="Give each attempt some time: --seconds 2.")
    tuning = _Tuning(recipe, seconds, told)
    fits = tuning.begin()
    if not fits:
        tuning.make_fit()
    if resolve_device(tuning.config.device).type == "cpu":
        tuning.choose("threads", _threads())
    else:
        tuning.left_alone["threads"] = "the model is not on the CPU"
    if fits:
        tuning.choose_micro_batch()
    tuning.choose_workers()
    if compiled:
        tuning.choose("compile", [True])
    else:
        tuning.left_alone["compile"] = "only with --compiled: it takes a minute"
    return tuning.done()


class _Tuning:
    """The best so far."""

    def __init__(self, recipe: Recipe, seconds: float, told: Callable[[Trial], None]) -> None:
        validate(recipe.train)
        self._seconds, self._told = seconds, told
        steady = ScheduleConfig(name="constant")
        self.config = self._own = replace(recipe.train, schedule=steady)
        prepare_generators(recipe.train)
        self.parts: Parts = recipe.assemble(recipe.options)
        self.trials: list[Trial] = []
        self.chosen: dict[str, Any] = {}
        self.left_alone: dict[str, str] = {}
        self.best: Throughput | None = None
        self._fits = True
        self._refusal: OutOfMemory

    def begin(self) -> bool:
        """Measure the settings as they are, once the process is warm; False where they do not fit into the memory.

        What else goes wrong with them is not ours to hide.
        """
        try:
            self._pace(self.config)
            self.best = self._pace(self.config)
        except Exception as error:
            if not _no_room(error):
                raise
            self._fits, self._refusal = False, _in_words(error)
        self._note(Trial(setting="", value=None, pace=self.best, problem="" if self.best else NO_ROOM))
        return self.best is not None

    def make_fit(self) -> None:
        """Halve the micro-batch until it fits.

        Raises:
            OutOfMemory: it never does, or may not be touched.
        """
        size = 1 if self._batch_normalised() else self._micro_batch
        while self.best is None and size > 1:
            size = -(-size // 2)
            self.choose("micro_batch", [size])
        if self.best is None:
            raise self._refusal

    def choose_micro_batch(self) -> None:
        """Try what the window can be cut into."""
        if not self._batch_normalised():
            self.choose("micro_batch", _micro_batches(self.config.effective_batch))

    def choose_workers(self) -> None:
        """Try more and more loader processes, until training no longer waits for data."""
        waiting = self.best.waiting if self.best else 1.0
        if waiting < VANISHES:
            self.left_alone["workers"] = f"training waits for data {100 * waiting:.1f} % of the time"
            return
        self.choose("workers", _workers(), enough=lambda pace: pace.waiting < VANISHES)

    def choose(self, setting: str, values: Sequence[Any], enough: Callable[[Throughput], bool] = lambda pace: False) -> None:
        """Try some values of a setting; keep one that is worth it, and stop where one is good enough."""
        current = self._micro_batch if setting == "micro_batch" else getattr(self.config, setting)
        for value in values:
            if value == current:
                continue
            config = replace(self.config, **{setting: value})
            pace = self._attempt(setting, value, config).pace
            if pace and (self.best is None or pace.examples_per_s > WORTH * self.best.examples_per_s):
                self.best, self.config, self.chosen[setting] = pace, config, value
            if pace and enough(pace):
                return

    def done(self) -> Tuned:
        """Measure once more, side by side, the settings as they were and the best; drop what was a lucky moment."""
        before = self._pace(self._own) if self._fits else None
        after = self._pace(self.config)
        if before and after.examples_per_s <= before.examples_per_s:
            self.chosen.clear()
        if before and not self.chosen:
            after = before
        return Tuned(
            trials=self.trials,
            chosen=self.chosen,
            before=before,
            after=after,
            largest=self._largest(),
            left_alone=self.left_alone,
        )

    def _largest(self) -> int | None:
        tried = [each.value for each in self.trials if each.setting == "micro_batch" and each.pace]
        own = [self._own.micro_batch or self._own.effective_batch] if self._fits else []
        return max([*tried, *own], default=None)

    @property
    def _micro_batch(self) -> int:
        return self.config.micro_batch or self.config.effective_batch

    def _batch_normalised(self) -> bool:
        """Say so where another micro-batch would not be the same run."""
        if normalised := has_active_batchnorm(self.parts.model):
            self.left_alone["micro_batch"] = (
                "batch normalisation sees one micro-batch at a time, so another one learns otherwise"
            )
        return normalised

    def _attempt(self, setting: str, value: Any, config: TrainConfig) -> Trial:
        try:
            trial = Trial(setting=setting, value=value, pace=self._pace(config))
        except (TrueloopError, RuntimeError) as error:  # what compiles here may lack a compiler there
            problem = f"{error}".partition("\n")[0]
            if _no_room(error):
                problem, self._refusal = NO_ROOM, _in_words(error)
            trial = Trial(setting=setting, value=value, pace=None, problem=problem)
        self._note(trial)
        return trial

    def _note(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._told(trial)

    def _pace(self, config: TrainConfig) -> Throughput:
        import torch

        parts, threads = self.parts, torch.get_num_threads()
        trainer = Trainer(model=copy.deepcopy(parts.model), objective=parts.objective, config=config)
        try:
            return trainer.pace(
                parts.train, collate=parts.collate, sampler=parts.sampler, labels=parts.labels, seconds=self._seconds
            )
        finally:
            torch.set_num_threads(threads)


def _no_room(error: Exception) -> bool:
    return isinstance(error, OutOfMemory) or is_out_of_memory(error)


def _in_words(error: Exception) -> OutOfMemory:
    """Return the lesson without the frames of its failure, which hold memory."""
    if isinstance(error, OutOfMemory):
        return error.with_traceback(None)
    said = str(error).partition("\n")[0]
    return OutOfMemory("The recipe does not fit into the memory.", why=f"torch said: {said}", fix=REMEDIES)


def _threads() -> list[int]:
    return list(_doubling(os.cpu_count() or 1))


def _workers() -> list[int]:
    return [0, *_doubling(max(1, (os.cpu_count() or 1) - 1))]


def _doubling(most: int) -> Iterator[int]:
    number = 1
    while number < most:
        yield number
        number *= 2
    yield most


def _micro_batches(effective: int) -> list[int]:
    """Return sizes that cut a window into 1, 2, 4 ... parts, the largest first."""
    return list(dict.fromkeys(-(-effective // parts) for parts in CUTS if parts <= effective))
