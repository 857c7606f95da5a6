"""Determine the resources that a recipe or a run needs, for `trueloop doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trueloop.app.planning.scale import MOMENTS
from trueloop.core.errors import InvalidConfig, RunFolderError
from trueloop.core.paths import is_file
from trueloop.doctor.diagnosis import RunRequirements

if TYPE_CHECKING:
    from trueloop.recipes.recipe import Recipe
    from trueloop.training.config import TrainConfig


def find_need(recipe_or_run: str, root: Path) -> tuple[RunRequirements, Path]:
    """Return the requirements of a recipe or a run, and the folder that the run is written to.

    Args:
        recipe_or_run: a recipe as for `trueloop train`, or a run as for `trueloop runs show`.
        root: folder of the runs.

    Raises:
        InvalidConfig: ``recipe_or_run`` names neither a recipe nor a run.

    Cost: assembling the recipe and reading its data; nothing is trained.
    """
    from trueloop.recipes import registry
    from trueloop.runs.journal import JOURNAL_NAME
    from trueloop.runs.queries.resolve import find_run

    recipes = [listing.name for listing in registry.listings()]
    if recipe_or_run in recipes or (".py" in recipe_or_run and not is_file(Path(recipe_or_run) / JOURNAL_NAME)):
        return recipe_need(registry.load(recipe_or_run)), root
    try:
        run = find_run(recipe_or_run, root)
    except RunFolderError as error:
        raise InvalidConfig(
            f"{recipe_or_run!r} is neither a recipe nor a run.",
            why=error.what,
            fix=f"Recipes are {', '.join(recipes)}. {error.fix}",
        ) from error
    return run_need(run), run


def recipe_need(recipe: Recipe) -> RunRequirements:
    """Return the requirements of a recipe: assemble it, measure its model, and read one sample."""
    from trueloop.training.seeding import prepare_generators

    config = recipe.train
    prepare_generators(config)
    parts = recipe.assemble(recipe.options)
    batch_size = config.micro_batch or config.effective_batch
    return replace(
        settings_need(config),
        checkpoint_bytes=checkpoint_size_bytes(parts.model, config),
        batch_bytes=_sample_bytes(parts.train, parts.collate) * batch_size or None,
    )


def settings_need(config: TrainConfig) -> RunRequirements:
    """Return the requirements that follow from the settings alone."""
    return RunRequirements(
        device=config.device,
        workers=config.workers,
        checkpoints=config.checkpoint.keep_last + config.checkpoint.keep_best + 1,
        threads=config.threads,
        deterministic=config.deterministic,
    )


def run_need(run: Path) -> RunRequirements:
    """Return the requirements of the run in a folder, with the size of its newest checkpoint."""
    from trueloop.runs.journal import read_journal

    facts = read_journal(run).facts
    config = _mapping_or_empty(facts.get("config"))
    checkpoint = _mapping_or_empty(config.get("checkpoint"))
    saved_checkpoints = [each for each in run.glob("checkpoints/*") if each.is_dir()]
    newest = max(saved_checkpoints, key=lambda each: each.stat().st_mtime, default=None)
    newest_bytes = sum(file.stat().st_size for file in newest.rglob("*") if file.is_file()) if newest else None
    return RunRequirements(
        device=str(config.get("device", "auto")),
        processes=facts.get("processes", 1),
        workers=config.get("workers"),
        checkpoint_bytes=newest_bytes,
        checkpoints=checkpoint.get("keep_last", 2) + checkpoint.get("keep_best", 1) + 1,
        threads=config.get("threads"),
        deterministic=bool(config.get("deterministic", False)),
    )


def checkpoint_size_bytes(model: Any, config: TrainConfig) -> int:
    """Estimate the size of a checkpoint: weights, optimizer moments, weight average.

    Args:
        model: an ``nn.Module``.
        config: the settings, which select the optimizer and the weight average.
    """
    weight_bytes = sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))
    trained_bytes = sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)
    has_moments = config.optim.name != "sgd" or bool(config.optim.momentum)
    moments = MOMENTS[config.optim.name] if has_moments else 0
    return weight_bytes * (2 if config.ema else 1) + trained_bytes * moments


def _sample_bytes(data: Any, collate: Any) -> int:
    """Return the size of a batch of one sample; 0 if there is no sample to read."""
    from trueloop.data import collate as default_collate

    if not hasattr(data, "__getitem__") or not len(data):
        return 0
    return _batch_bytes((collate or default_collate)([data[0]]))


def _batch_bytes(batch: Any) -> int:
    if isinstance(batch, Mapping):
        return sum(_batch_bytes(each) for each in cast("Mapping[Any, Any]", batch).values())
    if isinstance(batch, list | tuple):
        return sum(_batch_bytes(each) for each in cast("list[Any]", batch))
    return int(getattr(batch, "nbytes", 0))


def _mapping_or_empty(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
