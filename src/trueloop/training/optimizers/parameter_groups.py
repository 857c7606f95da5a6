"""Build the optimizer over exactly the trainable parameters, with weight decay only on matrices and filters."""

import difflib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.core.name_patterns import format_names, match_names
from trueloop.training.config import OptimConfig
from trueloop.training.distributed.dtensors import is_sharded
from trueloop.training.optimizers.adamw import LeanAdamW

CLASSES: Final[Mapping[str, type[torch.optim.Optimizer]]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
FUSED_DEVICES: Final[Mapping[str, frozenset[str]]] = {  # where torch 2.6 to 2.13 has a fused kernel of the class
    "adamw": frozenset({"cpu", "cuda", "mps"}),
    "adam": frozenset({"cpu", "cuda", "mps"}),
    "sgd": frozenset({"cpu", "cuda", "mps"}),
    "rmsprop": frozenset(),
    "adagrad": frozenset({"cpu"}),
}


def freeze(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Freeze every parameter whose name matches a shell pattern: "backbone.*", "*.bias".

    Only ``requires_grad`` changes. A BatchNorm inside a frozen part still updates its running statistics in train mode;
    put that part in eval mode yourself to prevent that. A tied weight matches by any of its names, and is frozen
    everywhere.

    Args:
        model: modified; unchanged if any pattern is wrong.
        patterns: as in the standard library's ``fnmatch``, case-sensitive, over ``model.named_parameters()``.

    Returns:
        The names of the parameters frozen here, in the model's order.

    Raises:
        InvalidConfig: a pattern matches no parameter.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    frozen = match_names(
        list(parameters), patterns, option="freeze", why="The part meant to be frozen would be trained."
    )
    for name in frozen:
        parameters[name].requires_grad_(False)
    return frozen


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Build the optimizer over the parameters that require a gradient, each once, also where tied.

    The groups are "decay" (two dimensions or more: matrices, filters, embeddings) and "no_decay" (biases,
    normalisation weights, scalars), under the key ``name``; an empty one is left out, and where nothing decays there
    is only "no_decay". ``decay_all`` makes one group of all.

    The fused kernel is used where torch has one and every parameter is real floating point on a device it supports;
    otherwise torch chooses. Complex parameters use torch's default kernels. Sparse gradients are refused:
    clipping, weight decay and the fused kernels need dense ones.

    Args:
        model: on its final device, frozen parts already frozen.
        config: class, rate and decay.

    Raises:
        InvalidConfig: a setting the class cannot work with.
        InvalidModel: nothing to train, or an embedding with sparse gradients.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    _check_settings(config)
    check_trainable(model)
    kind, arguments = CLASSES[config.name], _arguments(config, trainable)
    if config.name == "adamw" and arguments.get("fused") and LeanAdamW.supports(trainable):
        kind = LeanAdamW  # the fused kernel, with less Python around it
        del arguments["fused"]
    try:
        return kind(_groups(trainable, config), **arguments)
    except ValueError as error:  # torch's own range checks
        raise InvalidConfig(
            f"{kind.__name__} refuses its settings: {error}.", fix="Correct it under [optim]."
        ) from error


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise unless the optimizer holds exactly the model's trainable parameters, each once.

    Raises:
        InvalidModel: it does not; up to five parameters are named for each kind of mismatch.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trainable = {id(parameter): names[id(parameter)] for parameter in model.parameters() if parameter.requires_grad}
    in_optimizer = [
        (id(parameter), f"group {g}, place {p}, shape {tuple(parameter.shape)}")
        for g, group in enumerate(optimizer.param_groups)
        for p, parameter in enumerate(group["params"])
    ]
    times = Counter(key for key, _place in in_optimizer)
    problems = {
        "Trainable, but not in the optimizer": [name for key, name in trainable.items() if key not in times],
        "In the optimizer, but frozen": [names[key] for key in times if key in names and key not in trainable],
        "In the optimizer, but not in the model": [place for key, place in in_optimizer if key not in names],
        "In the optimizer more than once": [names[key] for key, count in times.items() if count > 1 and key in names],
    }
    if any(problems.values()):
        raise InvalidModel(
            "\n".join(f"{problem}: {format_names(named)}." for problem, named in problems.items() if named),
            why="Parameters missing from the optimizer never train; others cost memory or change unnoticed.",
            fix="Freeze and move the model first, then build the optimizer over what still requires a gradient.",
        )


def _groups(trainable: list[nn.Parameter], config: OptimConfig) -> list[dict[str, Any]]:
    decay, no_decay = list[nn.Parameter](), list[nn.Parameter]()
    for parameter in trainable:
        decays = config.weight_decay > 0 and (config.decay_all or parameter.ndim >= 2)
        (decay if decays else no_decay).append(parameter)
    groups: list[dict[str, Any]] = [
        {"name": "decay", "params": decay, "weight_decay": config.weight_decay},
        {"name": "no_decay", "params": no_decay, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _arguments(config: OptimConfig, trainable: list[nn.Parameter]) -> dict[str, Any]:
    arguments: dict[str, Any] = {"lr": config.lr}
    if config.name in ("adamw", "adam"):
        arguments |= {"betas": config.betas, "eps": config.eps}
    if config.name in ("sgd", "rmsprop"):
        arguments["momentum"] = config.momentum
    if config.name == "sgd":
        arguments["nesterov"] = config.nesterov
    supported = FUSED_DEVICES[config.name]
    if is_sharded(trainable) and config.name not in ("adamw", "adam"):
        return arguments  # torch 2.13 cannot run the fused kernels of the others on DTensors
    if all(parameter.is_floating_point() and parameter.device.type in supported for parameter in trainable):
        arguments["fused"] = True
    return arguments


def _check_settings(config: OptimConfig) -> None:
    if config.name not in CLASSES:
        near = difflib.get_close_matches(config.name, CLASSES, n=1)
        raise InvalidConfig(
            f"optim.name is {config.name!r}, which is none of {', '.join(CLASSES)}.",
            fix=f"Did you mean {near[0]!r}?" if near else "Choose one of them.",
        )
    if not 0 < config.lr < math.inf:
        raise InvalidConfig(f"optim.lr is {config.lr}.", fix="Set a finite learning rate above 0.")
    if not 0 <= config.weight_decay < math.inf:
        raise InvalidConfig(f"optim.weight_decay is {config.weight_decay}.", fix="Set 0 or a small positive number.")


def check_trainable(model: nn.Module) -> None:
    """Raise unless there is something to train, with dense gradients.

    Raises:
        InvalidModel: nothing requires a gradient, or an embedding has sparse gradients.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        frozen = [name for name, _parameter in model.named_parameters()]
        raise InvalidModel(
            f"The model has nothing to train: {format_names(frozen)} frozen."
            if frozen
            else "The model has no parameters.",
            why="The optimizer would have nothing to update.",
            fix="Narrow the `freeze` patterns, or undo requires_grad=False where it was set in the model's own code."
            if frozen
            else "Register its layers as attributes, in an nn.ModuleList or an nn.ModuleDict, not in a plain list.",
        )
    sparse = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight.requires_grad
    ]
    if sparse:
        raise InvalidModel(
            f"Embeddings with sparse=True: {format_names(sparse)}.",
            why="Clipping, weight decay and the fused kernels need dense gradients.",
            fix="Make them with sparse=False.",
        )
