"""Build the optimizer over exactly the trainable parameters; weight decay only applies to matrices and filters."""

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
FUSED_DEVICES: Final[Mapping[str, frozenset[str]]] = {  # devices with a fused kernel, in torch 2.6 to 2.13
    "adamw": frozenset({"cpu", "cuda", "mps"}),
    "adam": frozenset({"cpu", "cuda", "mps"}),
    "sgd": frozenset({"cpu", "cuda", "mps"}),
    "rmsprop": frozenset(),
    "adagrad": frozenset({"cpu"}),
}


def freeze(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Freeze every parameter whose name matches a shell pattern: "backbone.*", "*.bias".

    Only ``requires_grad`` changes. A BatchNorm layer in a frozen part still updates its running statistics in train
    mode; set it to eval mode yourself to prevent that. If any name of a tied weight matches, the weight is frozen.

    Args:
        model: model to modify; it is unchanged if an error is raised.
        patterns: patterns of the standard library's ``fnmatch`` for parameter names, case-sensitive.

    Returns:
        The names of the matching parameters, in the model's order.

    Raises:
        InvalidConfig: a pattern matches no parameter.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    frozen = match_names(
        list(parameters), patterns, option="freeze", why="The part that should be frozen would be trained."
    )
    for name in frozen:
        parameters[name].requires_grad_(False)
    return frozen


def build_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Build the optimizer over the parameters that require a gradient; tied parameters count once.

    The groups, with their names under the key ``name``, are "decay" (two dimensions or more: matrices, filters,
    embeddings) and "no_decay" (biases, normalisation weights, scalars). Empty groups are left out; with weight decay 0,
    all parameters are in "no_decay". With ``decay_all``, all are in one group.

    torch's fused kernel is used if every parameter is real floating-point and on a device that the kernel supports;
    otherwise torch chooses. Sparse gradients raise an error, because clipping, weight decay and the fused kernels need
    dense gradients.

    Args:
        model: model on its final device, after freezing.
        config: class, learning rate, weight decay and other settings, checked by `validate`.

    Raises:
        InvalidConfig: this class does not accept a combination of settings.
        InvalidModel: there is nothing to train, or an embedding has sparse gradients.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    check_trainable(model)
    optimizer_class, arguments = CLASSES[config.name], _arguments(config, trainable)
    if config.name == "adamw" and arguments.get("fused") and LeanAdamW.supports(trainable):
        optimizer_class = LeanAdamW  # the fused kernel, with less Python around it
        del arguments["fused"]
    try:
        return optimizer_class(_groups(trainable, config), **arguments)
    except ValueError as error:  # raised by torch's checks of the settings
        raise InvalidConfig(
            f"{optimizer_class.__name__} does not accept its settings: {error}.", fix="Correct them under [optim]."
        ) from error


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Check that the optimizer has exactly the model's trainable parameters, each once.

    Raises:
        InvalidModel: the parameters differ; the message lists up to five parameters for each kind of mismatch.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trainable = {id(parameter): names[id(parameter)] for parameter in model.parameters() if parameter.requires_grad}
    in_optimizer = [
        (id(parameter), f"group {g}, index {p}, shape {tuple(parameter.shape)}")
        for g, group in enumerate(optimizer.param_groups)
        for p, parameter in enumerate(group["params"])
    ]
    counts = Counter(key for key, _position in in_optimizer)
    problems = {
        "Trainable, but not in the optimizer": [name for key, name in trainable.items() if key not in counts],
        "In the optimizer, but frozen": [names[key] for key in counts if key in names and key not in trainable],
        "In the optimizer, but not in the model": [position for key, position in in_optimizer if key not in names],
        "In the optimizer more than once": [names[key] for key, count in counts.items() if count > 1 and key in names],
    }
    if any(problems.values()):
        raise InvalidModel(
            "\n".join(f"{problem}: {format_names(listed)}." for problem, listed in problems.items() if listed),
            why="Parameters missing from the optimizer are not trained; others take memory or change unnoticed.",
            fix="Freeze and move the model first, then build the optimizer over its trainable parameters.",
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
        return arguments  # torch 2.13 cannot run the fused kernels of other classes on DTensors
    if all(parameter.is_floating_point() and parameter.device.type in supported for parameter in trainable):
        arguments["fused"] = True
    return arguments


def check_trainable(model: nn.Module) -> None:
    """Check that the model has trainable parameters, with dense gradients.

    Raises:
        InvalidModel: no parameter requires a gradient, or an embedding has sparse gradients.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        frozen = [name for name, _parameter in model.named_parameters()]
        raise InvalidModel(
            f"The model has nothing to train: {format_names(frozen)} frozen."
            if frozen
            else "The model has no parameters.",
            why="The optimizer would have nothing to update.",
            fix="Narrow the `freeze` patterns, or remove requires_grad=False from the model's code."
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
            f"These embeddings have sparse=True: {format_names(sparse)}.",
            why="Clipping, weight decay and the fused kernels need dense gradients.",
            fix="Create them with sparse=False.",
        )
