"""Runs a recipe from start to finish and says where everything lies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from trueloop.app.training.run_facts import source_text
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
    """How a recipe's run ended, and where everything lies."""

    run_dir: Path | None
    """None after a smoke test, which writes nothing."""
    reason: str
    """"finished", "early_stop", "interrupted", "preempted" or "smoke"."""
    update: int
    epochs: int
    metrics: Mapping[str, float]
    """The newest value by "split/name"."""
    best_checkpoint: Path | None
    best_value: float | None
    weights: Path | None
    """None where the run was told to stop: the state to resume from is saved instead."""
    curves: Path | None
    report: Path | None
    seconds: float
    resumed_from: int
    skipped: int
    """Updates that were not finite and not stepped."""


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
    """Train a recipe, or continue the run that lies in ``run_dir``.

    Args:
        recipe: with its overrides applied.
        run_dir: where everything is written; or a function that chooses it, given the run's identity.
        reporters: told what happens, beside the journal.
        fresh: start over.
        smoke: only see whether the loss falls on a few batches; nothing is written.
        allow_change: continue also where settings, code or data are not those of the run in ``run_dir``.
        store: where the journal is copied to; see `Trainer.store`.

    Raises:
        TrueloopError: what cannot work, with what to do.
    """
    validate(recipe.train)
    if recipe.train.device == "auto":  # refused now rather than after the data were read, as below
        refuse_cpu_fallback("auto", resolve_device("auto"), os.environ)
    validate_store(store, run_dir)
    if isinstance(run_dir, Path) and not smoke:
        RunFolder(run_dir)  # refused now rather than after the data were read
    prepare_generators(recipe.train)  # the model's initial weights are drawn next
    parts = recipe.assemble(recipe.options)
    trainer = Trainer(
        model=parts.model,
        objective=parts.objective,
        config=recipe.train,
        run_dir=run_dir,
        metrics=parts.metrics,
        reporters=reporters,
        name=recipe.name,
        facts=_facts(recipe, parts),
        fresh=fresh,
        identity={"options": _options(recipe), "code": fingerprint_sources([recipe.assemble])},
        allow_change=allow_change,
        store=store,
    )
    if smoke:
        return _smoke(trainer, parts)
    result = trainer.fit(
        parts.train,
        val=parts.val,
        test=parts.test,
        collate=parts.collate,
        sampler=parts.sampler,
        labels=parts.labels,
    )
    return _summary(result)


def _summary(result: FitResult) -> RunSummary:
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


def _smoke(trainer: Trainer, parts: Parts) -> RunSummary:
    """Train on a few batches, then see that evaluation works too."""
    seen = trainer.smoke(parts.train, collate=parts.collate)
    metrics = {"first_pass/loss": sum(seen.first_pass) / len(seen.first_pass)}
    metrics["second_pass/loss"] = sum(seen.second_pass) / len(seen.second_pass)
    if parts.val is not None:
        seen_val = trainer.evaluate(parts.val, collate=parts.collate).metrics
        metrics |= {f"val/{name}": value for name, value in seen_val.items()}
    return RunSummary(
        run_dir=None,
        reason="smoke",
        update=len(seen.first_pass) + len(seen.second_pass),
        epochs=0,
        metrics=metrics,
        best_checkpoint=None,
        best_value=None,
        weights=None,
        curves=None,
        report=None,
        seconds=seen.seconds,
        resumed_from=0,
        skipped=0,
    )


def _facts(recipe: Recipe, parts: Parts) -> dict[str, Any]:
    options = {"options": _options(recipe)} if recipe.options is not None else {}
    command = {"command": list(recipe.command)} if recipe.command else {}
    named = {"recipe": recipe.name, "class_names": list(parts.class_names), **command}
    return {**named, "source": source_text(recipe.assemble), **options}


def _options(recipe: Recipe) -> dict[str, Any]:
    options = recipe.options
    return asdict(options) if is_dataclass(options) and not isinstance(options, type) else {}
