"""Build the autograd graph of one training batch of a recipe or a target, without running backward."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from trueloop.app.training.data_feed import DataFeed
from trueloop.autograd.graph import Graph, inspect, record_modules
from trueloop.core.errors import InvalidConfig
from trueloop.recipes.recipe import Recipe
from trueloop.training.config import TrainConfig
from trueloop.training.memory.device import move_to_device, resolve_device
from trueloop.training.memory.recompute import enable_recompute
from trueloop.training.objective import as_objective, check_graph
from trueloop.training.optimizers.parameter_groups import freeze
from trueloop.training.precision.mixed_precision import autocast
from trueloop.training.seeding import prepare_generators, seed_process
from trueloop.training.validate import validate
from trueloop.verification.batch_tree import leaves
from trueloop.verification.evidence import NotApplicable
from trueloop.verification.proof_context import ProofContext
from trueloop.verification.proof_target import ProofTarget
from trueloop.verification.rng_state import seed_all


def graph_of(recipe: Recipe) -> Graph:
    """Return the graph of one micro-batch of a recipe with its frozen parameters, precision and recomputation.

    Raises:
        InvalidModel: the loss has no graph.
        TrueloopError: the recipe cannot be trained.
    """
    config = recipe.train
    validate(config)
    prepare_generators(config)
    parts = recipe.assemble(recipe.options)
    device = resolve_device(config.device)
    model = _prepare_model(parts.model, config, device)
    objective = as_objective(parts.objective)
    objective.to(device)
    without_workers = replace(config, workers=0)
    source = DataFeed(without_workers, collate=parts.collate, pin_memory=False).training_source(
        parts.train, sampler=parts.sampler, labels=parts.labels
    )
    batch = move_to_device(next(iter(source.epoch(0))).data, device)
    seed_process(config.seed, 0)
    with record_modules(model), autocast(config.precision, device), torch.enable_grad():
        terms = objective(model, batch)
        loss = torch.stack([term.weight * term.sum / (1 if term.count is None else term.count) for term in terms]).sum()
    check_graph(loss)
    names = ("output", *(f"output {index}" for index in range(1, len(terms))))
    outputs = dict(pair for name, term in zip(names, terms, strict=True) for pair in leaves(term.output, name))
    return inspect(loss, model, {"loss": loss, **dict(leaves(batch, "batch")), **outputs})


def graph_of_target(target: ProofTarget) -> Graph:
    """Return the graph of one batch of a target of `trueloop verify`, on a copy of the model in train mode.

    Raises:
        InvalidConfig: the target has no loss or no batch.
        InvalidModel: the loss has no graph.
    """
    context = ProofContext(target)
    training, outputs = context.training_copy(), list[Any]()
    training.model.register_forward_hook(lambda _model, _inputs, output: outputs.append(output))
    seed_all(target.seed)
    try:
        batch = context.batch
        with record_modules(training.model), torch.enable_grad():
            loss = training.mean_loss(batch)
    except NotApplicable as reason:
        raise InvalidConfig(
            f"There is no graph to show: {reason}", fix="Pass the ProofTarget a loss, and a batch or a loader."
        ) from None
    check_graph(loss)
    output = dict(leaves(outputs[0] if outputs else None, "output"))
    return inspect(loss, training.model, {"loss": loss, **dict(leaves(batch, "batch")), **output})


def _prepare_model(model: nn.Module, config: TrainConfig, device: torch.device) -> nn.Module:
    freeze(model, config.freeze)
    if config.recompute:
        enable_recompute(model)
    return model.to(device).train()
