"""Load the trained model of a run: its recipe's model, with the final weights or those of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueloop.app.training.recipe_settings import apply_overrides
from trueloop.core.errors import CheckpointError, InvalidConfig, InvalidModel
from trueloop.core.paths import is_file
from trueloop.recipes import registry
from trueloop.runs.history import History
from trueloop.runs.journal import read_journal
from trueloop.runs.queries.overview import recorded_setting
from trueloop.runs.queries.resolve import find_run
from trueloop.runs.run_id import read_run_id
from trueloop.training.checkpoint.checkpoints import FOLDER, CheckpointFolder
from trueloop.training.checkpoint.manifest import MANIFEST, read_folder, read_manifest
from trueloop.training.checkpoint.weights import load_weights
from trueloop.training.code_version import fingerprint_sources
from trueloop.training.seeding import prepare_generators

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trueloop.recipes.recipe import Parts, Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Trained weights and their source."""

    run: Path
    source: str
    """Source of the weights: "final", or the name of a checkpoint."""
    tensors: Mapping[str, Tensor]
    update: int | None
    """Update after which the weights were saved; None = unknown."""
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The parts of a recipe, with trained weights in its model, on the CPU."""

    recipe: Recipe
    parts: Parts
    weights: Weights
    run_id: str
    notes: tuple[str, ...]
    """Remarks for the user, for example that the recipe's code has changed since training."""


def load_trained_model(run_or_checkpoint: str, root: Path, *, recipe: str = "") -> TrainedModel:
    """Build the model of a run and load its weights.

    Args:
        run_or_checkpoint: a run, as for `trueloop runs show`, or the folder of one of its checkpoints.
        root: folder of the runs, for a run that is named without a path.
        recipe: recipe of the run, if the journal does not name it: "path/to/recipe.py:build".

    Raises:
        RunFolderError: there is no such run.
        CheckpointError: there are no weights, or they are damaged.
        InvalidConfig: the recipe is unknown, or has changed.
        InvalidModel: the weights do not fit the model that the recipe builds.
    """
    path = Path(run_or_checkpoint)
    checkpoint = path if FOLDER.fullmatch(path.name) and is_file(path / MANIFEST) else None
    run = find_run(str(checkpoint.resolve().parents[1]) if checkpoint else run_or_checkpoint, root)
    history = read_journal(run)
    weights = _checkpoint_weights(run, checkpoint) if checkpoint else _run_weights(run, history)
    loaded_recipe = _find_recipe(run, history.facts, recipe)
    prepare_generators(loaded_recipe.train)
    parts = loaded_recipe.assemble(loaded_recipe.options)
    _load_weights(parts.model, weights)
    return TrainedModel(
        recipe=loaded_recipe,
        parts=replace(parts, model=parts.model.cpu()),
        weights=weights,
        run_id=read_run_id(run / "journal.jsonl") or "",
        notes=_changed_sources(history.facts, loaded_recipe, parts.model),
    )


def _run_weights(run: Path, history: History) -> Weights:
    path = run / "final" / "model.safetensors"
    if is_file(path):
        best = history.best if recorded_setting(history.facts, "checkpoint.final") == "best" else None
        metrics: dict[str, float] = {}
        for each in history.evaluations:  # later evaluations replace earlier ones
            if each.split == "test":
                metrics |= {f"test/{name}": float(value) for name, value in each.metrics.items()}
        return Weights(
            run=run, source="final", tensors=load_weights(path), update=best.update if best else None, metrics=metrics
        )
    folder = CheckpointFolder(run / "checkpoints", writing=False)
    checkpoint = folder.best() or folder.latest()
    if checkpoint is None:
        raise CheckpointError(
            f"{run} has neither final weights nor a complete checkpoint.", fix="Train it further, or name another run."
        )
    return _checkpoint_weights(run, checkpoint.path)


def _checkpoint_weights(run: Path, path: Path) -> Weights:
    from torch import Tensor

    try:
        manifest, _ = read_manifest(path)
        state = read_folder(path)
    except OSError as error:
        raise CheckpointError(f"{path} could not be read: {error.strerror or error}.") from error
    tensors = {**state["model"], **(state.get("average") or {})}  # the averaged weights are evaluated and exported
    if not all(isinstance(value, Tensor) for value in tensors.values()):
        raise CheckpointError(
            f"The checkpoint {path} is sharded over several processes.",
            fix=f"Let the run finish, or resume it: {run}/final/model.safetensors will hold all weights.",
        )
    return Weights(run=run, source=path.name, tensors=tensors, update=manifest.update, metrics=manifest.metrics)


def _find_recipe(run: Path, facts: Mapping[str, Any], requested: str) -> Recipe:
    """Return the requested or recorded recipe of a run, with the options that the run was trained with."""
    command = facts.get("command")  # trueloop train RECIPE ...
    spec = requested or (str(command[2]) if isinstance(command, list) and len(command) > 2 else "")
    if not spec:
        raise InvalidConfig(
            f"{run} does not record its recipe.",
            why="Weights alone do not define the model.",
            fix="Name the recipe: --recipe path/to/recipe.py:build, a function that returns a Recipe.",
        )
    recipe = registry.load(spec)
    options = facts.get("options")
    valid_names = vars(recipe.options) if hasattr(recipe.options, "__dict__") else _option_names(recipe.options)
    saved: Mapping[str, Any] = options if isinstance(options, dict) else {}
    unknown = [name for name in saved if name not in valid_names]
    if unknown:
        raise InvalidConfig(
            f"The run has the option {unknown[0]!r}, which the recipe {spec} no longer has.",
            fix="Use the version of the recipe that the run was trained with.",
        )
    values = {f"options.{name}": tuple(v) if isinstance(v, list) else v for name, v in saved.items()}
    seed = recorded_setting(facts, "seed")
    if isinstance(seed, int):
        values["seed"] = seed
    return apply_overrides(recipe, values)


def _option_names(options: Any) -> Mapping[str, Any]:
    from dataclasses import fields, is_dataclass

    return {each.name: None for each in fields(options)} if is_dataclass(options) else {}


def _load_weights(model: nn.Module, weights: Weights) -> None:
    expected = model.state_dict()
    mismatches = [f"missing: {name}" for name in expected if name not in weights.tensors]
    mismatches += [f"not in the model: {name}" for name in weights.tensors if name not in expected]
    mismatches += [
        f"{name}: {tuple(weights.tensors[name].shape)} saved, {tuple(expected[name].shape)} in the model"
        for name in expected
        if name in weights.tensors and weights.tensors[name].shape != expected[name].shape
    ]
    if mismatches:
        raise InvalidModel(
            f"The weights of {weights.run} ({weights.source}) do not fit the recipe's model: "
            f"{'; '.join(mismatches[:5])}",
            fix="Use the recipe and the options that the run was trained with.",
        )
    model.load_state_dict(dict(weights.tensors))


def _changed_sources(facts: Mapping[str, Any], recipe: Recipe, model: nn.Module) -> tuple[str, ...]:
    """Return a note that names the recipe's files that have changed since the run was trained, if there are any."""
    saved = facts.get("code")
    if not isinstance(saved, dict):
        return ()
    current = fingerprint_sources([recipe.assemble, model])
    files = [
        name
        for name, fingerprint in current.items()
        if isinstance(saved.get(name), str) and not set(fingerprint.split("/")) & set(saved[name].split("/"))
    ]
    return (f"Changed since the run was trained: {', '.join(files)}.",) if files else ()
