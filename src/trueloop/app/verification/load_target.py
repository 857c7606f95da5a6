"""Load the target of `trueloop verify` from a function in a file or from a recipe, whose step is trueloop's loop."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trueloop.recipes import registry
from trueloop.recipes.recipe import Recipe
from trueloop.verification.proof_target import ProofTarget

if TYPE_CHECKING:
    from torch import nn


def load_target(spec: str) -> ProofTarget:
    """Return the target that ``spec`` names.

    Args:
        spec: name of a recipe, or ``path/to/file.py:build`` (``build`` may be omitted) for a function without arguments
            that returns a `ProofTarget`, a mapping of its fields, a model, or a `Recipe`.

    Raises:
        InvalidConfig: the recipe, file or function does not exist, or returns an object of another type.
        MissingExtra: torch is not installed.
    """
    value = registry.build_from_spec(spec)
    return recipe_target(value) if isinstance(value, Recipe) else ProofTarget.from_user(value)


def recipe_target(recipe: Recipe) -> ProofTarget:
    """Return a target with a recipe's model, loss, data and optimizer; its step is an update of trueloop's loop."""
    from torch.utils.data import DataLoader

    from trueloop.data import collate
    from trueloop.training.optimizers.parameter_groups import build_optimizer, freeze
    from trueloop.training.seeding import seed_everything

    config = recipe.train
    seed_everything(config.seed)
    parts = recipe.assemble(recipe.options)

    def model() -> nn.Module:
        new_model = recipe.assemble(recipe.options).model
        freeze(new_model, config.freeze)
        return new_model

    def loader(data: Any, *, shuffle: bool) -> Any:
        if data is None or not hasattr(data, "__len__"):
            return data
        size = config.micro_batch or config.effective_batch
        return DataLoader(data, batch_size=size, shuffle=shuffle, collate_fn=parts.collate or collate)

    return ProofTarget(
        model=model,
        loss=_loss(parts.objective),
        loader=loader(parts.train, shuffle=True),
        val=loader(parts.val, shuffle=False),
        optimizer=lambda model: build_optimizer(model, config.optim),  # pyright: ignore[reportUnknownLambdaType]
        step=_step(parts.objective, recipe),
        seed=config.seed,
    )


def _loss(objective: Any) -> Any:
    from trueloop.training.loss_reduction import KNOWN_LOSSES
    from trueloop.training.objective import as_objective

    if isinstance(objective, KNOWN_LOSSES):
        return objective
    terms = as_objective(objective)

    def mean(model: nn.Module, batch: Any) -> Any:
        means = [term.sum * term.weight / (1.0 if term.count is None else term.count) for term in terms(model, batch)]
        return sum(means[1:], start=means[0])

    return mean


def _step(objective: Any, recipe: Recipe) -> Any:
    """Return a step function that runs one window of trueloop's loop with the given optimizer."""
    from trueloop.core.protocols import MicroBatch
    from trueloop.training.assemble import UserComponents, assemble
    from trueloop.training.config import ScheduleConfig
    from trueloop.training.loop import train_epoch

    config = replace(recipe.train, schedule=ScheduleConfig(name="constant"), compile=False, freeze=(), ema=None)

    def step(model: nn.Module, optimizer: Any, batches: list[Any]) -> None:
        device = next(model.parameters()).device
        components = UserComponents(optimizer=lambda _parameters: optimizer)  # pyright: ignore[reportUnknownLambdaType]
        assembly = assemble(model, objective, config, device=device, updates_per_epoch=None, components=components)
        last = len(batches) - 1
        micro_batches = (MicroBatch(batch, index == last, None) for index, batch in enumerate(batches))
        for _ in train_epoch(assembly, micro_batches, update=0):
            pass

    return step
