"""Finds settings that make a recipe fast and leave its meaning alone: each is tried on the recipe itself."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trueloop.engines.train.config import ScheduleConfig, TrainConfig
from trueloop.engines.train.device import resolve_device
from trueloop.engines.train.pace import Pace
from trueloop.engines.train.seeding import prepare_generators
from trueloop.engines.train.validate import validate
from trueloop.faces.trainer import Trainer
from trueloop.ground.errors import InvalidConfig, TrueloopError
from trueloop.recipes.recipe import Parts, Recipe

WORTH: Final = 1.05  # times as fast, for a setting other than the one there is: less is noise on most machines
CUTS: Final = (1, 2, 4, 8, 16, 32, 64)  # micro-batches that a window is cut into


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One attempt."""

    setting: str
    """The one that is being tried; "" for the settings as they are."""
    value: Any
    pace: Pace | None
    """None where it could not be trained so."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What was tried, and what is best."""

    trials: Sequence[Trial]
    chosen: Mapping[str, Any]
    """Settings that differ from the recipe's, by name."""
    before: Pace
    after: Pace
    left_alone: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings that were not tried, and why."""


def tune_recipe(
    recipe: Recipe, *, seconds: float, compiled: bool, told: Callable[[Trial], None] = lambda trial: None
) -> Tuned:
    """Try settings one after the other, each with the best of those before.

    Tried are threads (on the CPU), the micro-batch, loader processes and, where asked for, compiling: none of them
    changes what is learnt but for rounding. The effective batch, the precision and the optimizer are the recipe's.

    Args:
        recipe: with its overrides applied; its data is read once.
        seconds: each attempt is measured for.
        compiled: try to compile the model, which takes a minute.
        told: called after each attempt.

    Raises:
        InvalidConfig: no time at all.
        TrueloopError: the recipe cannot be trained as it is.
    """
    if not seconds > 0:
        raise InvalidConfig(f"seconds is {seconds:g}.", fix="Give each attempt some time: --seconds 2.")
    tuning = _Tuning(recipe, seconds, told)
    tuning.begin()
    left_alone: dict[str, str] = {}
    if resolve_device(tuning.config.device).type == "cpu":
        tuning.choose("threads", _threads())
    else:
        left_alone["threads"] = "the model is not on the CPU"
    if _normalises_batches(tuning.parts.model):
        left_alone["micro_batch"] = (
            "batch normalisation sees one micro-batch at a time, so another one learns otherwise"
        )
    else:
        tuning.choose("micro_batch", _micro_batches(tuning.config.effective_batch))
    tuning.choose("workers", _workers())
    if compiled:
        tuning.choose("compile", [True])
    else:
        left_alone["compile"] = "only with --compiled: it takes a minute"
    before, after = tuning.confirmed()
    return Tuned(trials=tuning.trials, chosen=tuning.chosen, before=before, after=after, left_alone=left_alone)


class _Tuning:
    """The best so far."""

    def __init__(self, recipe: Recipe, seconds: float, told: Callable[[Trial], None]) -> None:
        validate(recipe.train)
        self._seconds, self._told = seconds, told
        self.config = self._own = replace(recipe.train, schedule=ScheduleConfig(name="constant"))
        prepare_generators(recipe.train)
        self.parts: Parts = recipe.assemble(recipe.options)
        self.trials: list[Trial] = []
        self.chosen: dict[str, Any] = {}
        self.best: Pace

    def choose(self, setting: str, values: Sequence[Any]) -> None:
        """Try some values of a setting; keep one that is worth it."""
        current = getattr(self.config, setting)
        for value in values:
            if value == current:
                continue
            config = replace(self.config, **{setting: value})
            trial = self._attempt(setting, value, config)
            if trial.pace and trial.pace.examples_per_s > WORTH * self.best.examples_per_s:
                self.best, self.config, self.chosen[setting] = trial.pace, config, value

    def begin(self) -> None:
        """Measure the settings as they are, once the process is warm; what goes wrong with them is not ours to hide."""
        self._pace(self.config)
        self.best = self._pace(self.config)
        self._note(Trial(setting="", value=None, pace=self.best))

    def confirmed(self) -> tuple[Pace, Pace]:
        """Measure once more, side by side, the settings as they were and the best; drop what was a lucky moment."""
        before, after = self._pace(self._own), self._pace(self.config)
        if after.examples_per_s <= before.examples_per_s:
            self.chosen.clear()
            return before, before
        return before, after if self.chosen else before

    def _attempt(self, setting: str, value: Any, config: TrainConfig) -> Trial:
        import torch

        try:
            trial = Trial(setting=setting, value=value, pace=self._pace(config))
        except torch.OutOfMemoryError:
            trial = Trial(setting=setting, value=value, pace=None, problem="does not fit into the memory")
        except (TrueloopError, RuntimeError) as error:  # what compiles here may lack a compiler there
            trial = Trial(setting=setting, value=value, pace=None, problem=f"{error}".partition("\n")[0])
        self._note(trial)
        return trial

    def _note(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._told(trial)

    def _pace(self, config: TrainConfig) -> Pace:
        import torch

        parts, threads = self.parts, torch.get_num_threads()
        trainer = Trainer(model=copy.deepcopy(parts.model), objective=parts.objective, config=config)
        try:
            return trainer.pace(
                parts.train, collate=parts.collate, sampler=parts.sampler, labels=parts.labels, seconds=self._seconds
            )
        finally:
            torch.set_num_threads(threads)


def _normalises_batches(model: Any) -> bool:
    from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

    return any(isinstance(each, _BatchNorm) for each in model.modules())


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
