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


def find_need(word: str, root: Path) -> tuple[RunRequirements, Path]:
    """Return the needs of a recipe or a run, and the folder that the run is written to.

    Args:
        word: a recipe as for `trueloop train`, or a run as for `trueloop runs show`.
        root: folder of the runs.

    Raises:
        InvalidConfig: the word names neither a recipe nor a run.

    Cost: assembling the recipe and reading its data; nothing is trained.
    """
    from trueloop.recipes import registry
    from trueloop.runs.journal import JOURNAL_NAME
    from trueloop.runs.queries.resolve import find_run

    recipes = [listing.name for listing in registry.listings()]
    if word in recipes or (".py" in word and not is_file(Path(word) / JOURNAL_NAME)):
        return recipe_need(registry.load(word)), root
    try:
        run = find_run(word, root)
    except RunFolderError as error:
        raise InvalidConfig(
            f"{word!r} is neither a recipe nor a run.",
            why=error.what,
            fix=f"Recipes are {', '.join(recipes)}. {error.fix}",
        ) from error
    return run_need(run), run


def recipe_need(recipe: Recipe) -> RunRequirements:
    """Return the needs of a recipe: assemble it, measure its model, and read one sample."""
    from trueloop.training.seeding import prepare_generators

    config = recipe.train
    prepare_generators(config)
    parts = recipe.assemble(recipe.options)
    need = settings_need(config)
    batch = config.micro_batch or config.effective_batch
    return replace(
        need,
        checkpoint_bytes=checkpoint_size_bytes(parts.model, config),
        batch_bytes=_sample_bytes(parts.train, parts.collate) * batch or None,
    )


def settings_need(config: TrainConfig) -> RunRequirements:
    """Return the needs that follow from the settings alone."""
    return RunRequirements(
        device=config.device,
        workers=config.workers,
        checkpoints=config.checkpoint.keep_last + config.checkpoint.keep_best + 1,
        threads=config.threads,
        deterministic=config.deterministic,
    )


def run_need(run: Path) -> RunRequirements:
    """Return the needs of a run, with the size of its newest checkpoint.

    Args:
        run: the run folder.
    """
    from trueloop.runs.journal import read_journal

    facts = read_journal(run).facts
    config = _mapping_or_empty(facts.get("config"))
    checkpoint = _mapping_or_empty(config.get("checkpoint"))
    saved = [each for each in run.glob("checkpoints/*") if each.is_dir()]
    newest = max(saved, key=lambda each: each.stat().st_mtime, default=None)
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
    weights = sum(each.numel() * each.element_size() for each in (*model.parameters(), *model.buffers()))
    trained = sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)
    plain = config.optim.name == "sgd" and not config.optim.momentum
    return weights * (2 if config.ema else 1) + trained * (0 if plain else MOMENTS[config.optim.name])


def _sample_bytes(data: Any, collate: Any) -> int:
    """Return the size of a batch of one sample; 0 if there is no sample to read."""
    from trueloop.data import collate as default

    if not hasattr(data, "__getitem__") or not len(data):
        return 0
    return _batch_bytes((collate or default)([data[0]]))


def _batch_bytes(batch: Any) -> int:
    if isinstance(batch, Mapping):
        return sum(_batch_bytes(each) for each in cast("Mapping[Any, Any]", batch).values())
    if isinstance(batch, list | tuple):
        return sum(_batch_bytes(each) for each in cast("list[Any]", batch))
    return int(getattr(batch, "nbytes", 0))


def _mapping_or_empty(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
