"""Profiles a recipe: a few of its updates under torch's profiler; nothing of a run is written."""

from __future__ import annotations

from pathlib import Path

from trueloop.app.output_file import writable
from trueloop.app.training.trainer import Trainer
from trueloop.core.errors import InvalidConfig
from trueloop.recipes.recipe import Recipe
from trueloop.training.profiling.profile import Profile
from trueloop.training.seeding import prepare_generators
from trueloop.training.validate import validate


def profile_recipe(recipe: Recipe, *, updates: int, trace: Path | None = None) -> Profile:
    """Train a recipe for a few updates and say where their time went.

    Args:
        recipe: with its overrides applied.
        updates: that are looked at, after some that warm up.
        trace: where to write a trace for Chrome or Perfetto.

    Raises:
        InvalidConfig: nothing can be written there, or a number of updates that is none.
        TrueloopError: what cannot work, with what to do.
    """
    if updates < 1:
        raise InvalidConfig(f"updates is {updates}.", fix="Look at one update at least.")
    if trace is not None and not writable(trace, "trace").name.endswith((".json", ".json.gz")):
        raise InvalidConfig(f"A trace cannot be written to {str(trace)!r}.", fix="Name a .json or .json.gz file.")
    validate(recipe.train)
    prepare_generators(recipe.train)
    parts = recipe.assemble(recipe.options)
    trainer = Trainer(model=parts.model, objective=parts.objective, config=recipe.train, name=recipe.name)
    return trainer.profile(
        parts.train, collate=parts.collate, sampler=parts.sampler, labels=parts.labels, updates=updates, trace=trace
    )
