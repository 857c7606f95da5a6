"""Assemble a run in the only correct order: freeze and move the model, then build the optimizer over its parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.training.compiled.compiled_step import CompiledStep
from trueloop.training.compiled.step_graph import StepSpec
from trueloop.training.config import TrainConfig
from trueloop.training.distributed.ddp import DdpParallel
from trueloop.training.distributed.parallel import Parallel, SingleProcess
from trueloop.training.distributed.processes import SINGLE_PROCESS, Processes
from trueloop.training.distributed.sync_batchnorm import convert_sync_batchnorm
from trueloop.training.loop import Assembly
from trueloop.training.memory.channels_last import use_channels_last
from trueloop.training.memory.oom_retry import OutOfMemoryRetry
from trueloop.training.memory.recompute import enable_recompute
from trueloop.training.memory.transfer import make_device_transfer
from trueloop.training.objective import Objective, as_objective
from trueloop.training.optimizers.parameter_groups import build_optimizer, check_optimizer, check_trainable, freeze
from trueloop.training.optimizers.schedule import RateSchedule, Schedule, UserSchedule
from trueloop.training.optimizers.weight_average import WeightAverage
from trueloop.training.precision.mixed_precision import LossScale, autocast
from trueloop.training.precision.nonfinite_guard import Guard
from trueloop.training.update import Update, make_update
from trueloop.training.window import Counts

MakeOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserComponents:
    """Components that the user passes instead of settings; None = build the component from the settings."""

    optimizer: MakeOptimizer | None = None
    """Function of the trainable parameters that returns an optimizer."""
    scheduler: MakeScheduler | None = None
    """Function of the optimizer that returns a scheduler; the scheduler is stepped once per update."""
    counts: Counts | None = None
    """Function of a batch that returns the terms' counts, see `window.Counts`."""


def assemble(
    model: nn.Module,
    objective: Any,
    config: TrainConfig,
    *,
    device: torch.device,
    updates_per_epoch: int | None,
    components: UserComponents | None = None,
    processes: Processes = SINGLE_PROCESS,
) -> Assembly:
    """Build everything that the loop uses.

    Args:
        model: the model; it is moved to ``device`` and frozen in place.
        objective: an argument for `as_objective`.
        config: validated settings.
        device: device on which the run trains.
        updates_per_epoch: number of updates per epoch, for the schedule; None if unknown.
        components: the user's own optimizer, scheduler or counts.
        processes: processes that share the run; each of them has to call this function.

    Raises:
        InvalidConfig, InvalidModel: model, loss, optimizer or settings do not fit together; the message names them.
    """
    components = components or UserComponents()
    _prepare_model(model, config, device, processes)
    _check_loss_parameters(model, objective)
    objective = as_objective(objective)
    objective.to(device)
    forward = cast("nn.Module", torch.compile(model)) if config.compile else model
    parallel = _build_parallel(model, forward, objective, config, processes)
    optimizer = _build_optimizer(model, config, components)
    check_optimizer(model, optimizer)
    context = autocast(config.precision, device)
    guard = Guard(model, config.guard)
    return Assembly(
        model=model,
        forward=forward,
        objective=objective,
        parallel=parallel,
        counts=components.counts,
        optimizer=optimizer,
        update=_build_update(optimizer, config, parallel),
        schedule=_build_schedule(optimizer, config, components, updates_per_epoch),
        scale=LossScale(device, enabled=config.precision == "fp16"),
        guard=guard,
        oom_retry=OutOfMemoryRetry(model, guard, processes, device, enabled=config.out_of_memory == "halve"),
        average=None if config.ema is None else WeightAverage(model, config.ema),
        device=device,
        on_cpu=device.type == "cpu",
        to_device=make_device_transfer(device),
        autocast=lambda: context,
        compiled_step=_build_compiled_step(model, objective, optimizer, config, components, processes),
    )


def _prepare_model(model: nn.Module, config: TrainConfig, device: torch.device, processes: Processes) -> None:
    """Freeze, convert and move the model, before anything refers to its parameters."""
    freeze(model, config.freeze)
    if config.recompute:
        enable_recompute(model)
    if config.channels_last:
        if config.parallel.engine == "fsdp" and processes.size > 1:
            raise InvalidConfig(
                "channels_last is on, but the parameters will be sharded (parallel.engine = fsdp).",
                why="FSDP only takes parameters in row-major order.",
                fix="Set channels_last = false, or parallel.engine = ddp.",
            )
        use_channels_last(model)
    model.to(device)
    if config.parallel.sync_batchnorm:
        convert_sync_batchnorm(model, device, processes)
    if not model.training:
        model.train()  # an evaluation may have left it in eval mode; a model in train mode may have submodules in eval


def _build_parallel(
    model: nn.Module, forward: nn.Module, objective: Objective, config: TrainConfig, processes: Processes
) -> Parallel:
    if processes.size == 1:
        return SingleProcess(forward, objective)
    if config.parallel.engine == "fsdp":
        from trueloop.training.distributed.fsdp import FsdpParallel

        return FsdpParallel(model, forward, objective, processes)
    return DdpParallel(
        model, forward, objective, processes, find_unused=config.parallel.find_unused_parameters == "always"
    )


def _build_update(optimizer: torch.optim.Optimizer, config: TrainConfig, parallel: Parallel) -> Update:
    if parallel.sharded:
        from trueloop.training.distributed.fsdp import FsdpParallel, ShardedUpdate

        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return ShardedUpdate(
            optimizer, parameters, config.clip, cast("FsdpParallel", parallel), skip_nonfinite=config.guard.enabled
        )
    return make_update(optimizer, config.clip, skip_nonfinite=config.guard.enabled)


def _build_compiled_step(
    model: nn.Module,
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
    components: UserComponents,
    processes: Processes,
) -> CompiledStep | None:
    if not config.compile:
        return None
    reasons_against = {
        "fp16 needs a loss scale.": config.precision == "fp16",
        "recompute decides in every pass which activations to store.": config.recompute,
        "the counts of the objective are declared beforehand.": components.counts is not None,
        f"{processes.size} processes share the update.": processes.size > 1,
    }
    spec = StepSpec(
        model=model,
        objective=objective,
        clip=config.clip,
        skip_nonfinite=config.guard.enabled,
        autocast=torch.bfloat16 if config.precision == "bf16" else None,
    )
    return CompiledStep(spec, optimizer, next((reason for reason, applies in reasons_against.items() if applies), None))


def _check_loss_parameters(model: nn.Module, objective: Any) -> None:
    """Raise if the loss has its own parameters, which would be neither trained nor saved."""
    if not isinstance(objective, nn.Module):
        return
    in_model = {id(parameter) for parameter in model.parameters()}
    names = [name for name, p in objective.named_parameters() if p.requires_grad and id(p) not in in_model]
    if names:
        raise InvalidModel(
            f"The loss {type(objective).__name__} has trainable parameters of its own: {', '.join(names[:5])}.",
            why="The optimizer has only the model's parameters, so these would never be trained or saved.",
            fix="Make the loss a submodule of the model, and give a function (model, batch) that uses it there.",
        )


def _build_optimizer(model: nn.Module, config: TrainConfig, components: UserComponents) -> torch.optim.Optimizer:
    if components.optimizer is None:
        return build_optimizer(model, config.optim)
    check_trainable(model)
    return components.optimizer([p for p in model.parameters() if p.requires_grad])


def _build_schedule(
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
    components: UserComponents,
    updates_per_epoch: int | None,
) -> RateSchedule:
    if components.scheduler is not None:
        return UserSchedule(components.scheduler(optimizer))
    horizon_epochs = config.schedule.horizon_epochs or config.epochs
    updates = None if updates_per_epoch is None else updates_per_epoch * horizon_epochs
    return Schedule(optimizer, config.schedule, updates=updates, updates_per_epoch=updates_per_epoch)
