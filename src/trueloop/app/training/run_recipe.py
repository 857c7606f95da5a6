"""Run a recipe from start to finish, and return its results and their locations."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from trueloop.app.training.run_facts import read_source_file
from trueloop.app.training.run_folder import RunFolder
from trueloop.app.training.startup_checks import refuse_cpu_fallback
from trueloop.app.training.tracking import validate_store
from trueloop.app.training.trainer import Trainer
from trueloop.core.protocols import Reporter
from trueloop.recipes.recipe import Parts, Recipe
from trueloop.training.checkpoint.run_identity import Identity
from trueloop.training.code_version import fingerprint_sources
from trueloop.training.memory.device import resolve_device
from trueloop.training.result import FitResult
from trueloop.training.seeding import prepare_generators
from trueloop.training.validate import validate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """The results of a recipe's run and their locations."""

    run_dir: Path | None
    """The run folder; None after a smoke test, which writes nothing."""
    reason: str
    """Why the run ended: "finished", "early_stop", "interrupted", "preempted" or "smoke"."""
    update: int
    epochs: int = 0
    metrics: Mapping[str, float]
    """The newest metric values by "split/name"."""
    best_checkpoint: Path | None = None
    best_value: float | None = None
    weights: Path | None = None
    """The trained weights; None if the run was interrupted and can be resumed."""
    curves: Path | None = None
    report: Path | None = None
    seconds: float
    resumed_from: int = 0
    """Number of updates that were done when this process started."""
    skipped: int = 0
    """Number of updates that were skipped because their gradient was not finite."""


def run_recipe(
    recipe: Recipe,
    *,
    run_dir: Path | Callable[[Identity], Path],
    reporters: Sequence[Reporter],
    fresh: bool = False,
    smoke: bool = False,
    allow_change: bool = False,
    store: str | None = None,
) -> RunSummary:
    """Train a recipe, or resume the run in ``run_dir``.

    Args:
        recipe: the recipe, with its overrides applied.
        run_dir: the run folder, or a function from the run's identity to the run folder.
        reporters: receivers of all run events, in addition to the journal.
        fresh: True to start over.
        smoke: True to only check that the loss falls on a few batches, without writing anything.
        allow_change: True to resume even if settings, code or data differ from those of the run in ``run_dir``.
        store: address of the store that the journal is synced to; see `Trainer.store`.

    Raises:
        TrueloopError: the recipe cannot be trained.
    """
    validate(recipe.train)
    if recipe.train.device == "auto":  # fail before the data is read
        refuse_cpu_fallback("auto", resolve_device("auto"), os.environ)
    validate_store(store, run_dir)
    if isinstance(run_dir, Path) and not smoke:
        RunFolder(run_dir)  # fail before the data is read
    prepare_generators(recipe.train)  # the model is initialised next
    parts = recipe.assemble(recipe.options)
    trainer = Trainer(
        model=parts.model,
        objective=parts.objective,
        config=recipe.train,
        run_dir=run_dir,
        metrics=parts.metrics,
        reporters=reporters,
        name=recipe.name,
        facts=_make_facts(recipe, parts),
        fresh=fresh,
        identity={"options": _options_dict(recipe), "code": fingerprint_sources([recipe.assemble])},
        allow_change=allow_change,
        store=store,
    )
    if smoke:
        return _run_smoke(trainer, parts)
    result = trainer.fit(
        parts.train, val=parts.val, test=parts.test, collate=parts.collate, sampler=parts.sampler, labels=parts.labels
    )
    return _make_summary(result)


def _make_summary(result: FitResult) -> RunSummary:
    assert result.run_dir is not None
    folder = RunFolder(result.run_dir)
    return RunSummary(
        run_dir=folder.path,
        reason=result.reason,
        update=result.update,
        epochs=result.epochs,
        metrics=result.metrics,
        best_checkpoint=result.best_checkpoint,
        best_value=result.best_value,
        weights=None if result.unfinished else folder.weights,
        curves=folder.curves,
        report=folder.report,
        seconds=result.seconds,
        resumed_from=result.resumed_from,
        skipped=result.skipped,
    )


def _run_smoke(trainer: Trainer, parts: Parts) -> RunSummary:
    """Train on a few batches and evaluate once, to check that both work."""
    smoke_result = trainer.smoke(parts.train, collate=parts.collate)
    metrics = {"first_pass/loss": fmean(smoke_result.first_pass), "second_pass/loss": fmean(smoke_result.second_pass)}
    if parts.val is not None:
        val_metrics = trainer.evaluate(parts.val, collate=parts.collate).metrics
        metrics |= {f"val/{name}": value for name, value in val_metrics.items()}
    return RunSummary(
        run_dir=None,
        reason="smoke",
        update=len(smoke_result.first_pass) + len(smoke_result.second_pass),
        metrics=metrics,
        seconds=smoke_result.seconds,
    )


def _make_facts(recipe: Recipe, parts: Parts) -> dict[str, Any]:
    facts: dict[str, Any] = {"recipe": recipe.name, "class_names": list(parts.class_names)}
    if recipe.command:
        facts["command"] = list(recipe.command)
    facts["source"] = read_source_file(recipe.assemble)
    if recipe.options is not None:
        facts["options"] = _options_dict(recipe)
    return facts


def _options_dict(recipe: Recipe) -> dict[str, Any]:
    options = recipe.options
    return asdict(options) if is_dataclass(options) and not isinstance(options, type) else {}
