"""Profile a few updates of a recipe with the PyTorch profiler, without writing a run."""

from pathlib import Path

from trueloop.app.output_file import check_writable
from trueloop.app.training.trainer import Trainer
from trueloop.core.errors import InvalidConfig
from trueloop.recipes.recipe import Recipe
from trueloop.training.profiling.profile import Profile
from trueloop.training.seeding import prepare_generators
from trueloop.training.validate import validate


def profile_recipe(recipe: Recipe, *, updates: int, trace: Path | None = None) -> Profile:
    """Train a recipe for a few updates and measure where the time is spent.

    Args:
        recipe: the recipe, with its overrides applied.
        updates: number of updates to profile, after a few warm-up updates.
        trace: file for a trace that Chrome and Perfetto can open; None = no trace.

    Raises:
        InvalidConfig: the trace cannot be written, or ``updates`` is less than 1.
        TrueloopError: the recipe cannot be trained.
    """
    if updates < 1:
        raise InvalidConfig(f"updates is {updates}.", fix="Profile at least one update.")
    if trace is not None and not check_writable(trace, "trace").name.endswith((".json", ".json.gz")):
        raise InvalidConfig(f"A trace cannot be written to {str(trace)!r}.", fix="Name a .json or .json.gz file.")
    validate(recipe.train)
    prepare_generators(recipe.train)
    parts = recipe.assemble(recipe.options)
    trainer = Trainer(model=parts.model, objective=parts.objective, config=recipe.train, name=recipe.name)
    return trainer.profile(
        parts.train, collate=parts.collate, sampler=parts.sampler, labels=parts.labels, updates=updates, trace=trace
    )
