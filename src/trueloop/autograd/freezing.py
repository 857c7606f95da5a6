"""Freeze and thaw parameters during a run and update the optimizer; the other parameters keep their state in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.core.name_patterns import format_names, match_names

Group = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeResult:
    """Result of `freeze` or `thaw`."""

    parameters: tuple[str, ...]
    """Names of parameters whose ``requires_grad`` changed, in the model's order; all names of a tied weight."""
    removed: int
    """Number of parameters removed from the optimizer."""
    added: int
    """Number of parameters added to the optimizer."""


def freeze(model: nn.Module, *patterns: str, optimizer: torch.optim.Optimizer | None = None) -> FreezeResult:
    """Stop training every parameter whose name matches a shell pattern, and remove it from the optimizer.

    The gradient and state (Adam's moments) of a frozen parameter are dropped: the gradient would count in the norm and
    be applied once more, and the old moments would be wrong after thawing. Other parameters keep their state, group and
    settings. A group that becomes empty is not removed, because schedulers rely on the number of groups.

    A frozen BatchNorm layer still updates its running statistics in train mode: set it to eval mode yourself. With
    DistributedDataParallel, freeze or thaw first and wrap the model again: DDP chooses which gradients to await.

    Args:
        model: model to modify; it is unchanged if an error is raised.
        patterns: shell patterns, case-sensitive: "backbone.*", "*.bias".
        optimizer: optimizer to modify; None leaves that to the caller.

    Raises:
        InvalidConfig: there is no pattern, or one matches no parameter.
        InvalidModel: the optimizer has one joint state for all parameters (LBFGS).
    """
    matched = _match_parameters(
        model, patterns, operation="freeze", why="The part that should be frozen would still be trained."
    )
    _refuse_joint_state(optimizer)
    changed = tuple(name for name, parameter in matched.items() if parameter.requires_grad)
    for parameter in matched.values():
        parameter.requires_grad_(False)
        parameter.grad = None
    frozen = {id(parameter) for parameter in matched.values()}
    removed = 0
    for group in optimizer.param_groups if optimizer else ():
        remaining = [each for each in group["params"] if id(each) not in frozen]
        removed += len(group["params"]) - len(remaining)
        _set_parameters(group, remaining, {})
    if optimizer is not None:
        for parameter in matched.values():
            optimizer.state.pop(parameter, None)
        _refresh(optimizer)
    return FreezeResult(parameters=changed, removed=removed, added=0)


def thaw(
    model: nn.Module, *patterns: str, optimizer: torch.optim.Optimizer | None = None, group: str | int | None = None
) -> FreezeResult:
    """Train every parameter whose name matches a shell pattern again, and add it to the optimizer with new state.

    The parameters are added to ``group`` or the only group. If two groups differ only in their weight decay, parameters
    with two dimensions or more are added to the one with decay, biases and normalisation weights to the other. A group
    in the model's order keeps that order, so its ``state_dict`` fits a newly built optimizer. No group is added,
    because a scheduler would not know its rate.

    Args:
        model: model to modify; it is unchanged if an error is raised.
        patterns: shell patterns, case-sensitive: "backbone.layer4.*".
        optimizer: optimizer to modify; None leaves that to the caller.
        group: index or ``name`` of the group for all of them, if the choice is ambiguous.

    Raises:
        InvalidConfig: there is no pattern, one matches no parameter, or the group does not exist.
        InvalidModel: the group is ambiguous, a parameter has an integer type, or the optimizer is LBFGS.
    """
    matched = _match_parameters(model, patterns, operation="thaw", why="The part that should train would not change.")
    _refuse_joint_state(optimizer)
    integers = [name for name, each in matched.items() if not (each.is_floating_point() or each.is_complex())]
    if integers:
        raise InvalidModel(
            f"Integer parameters cannot be trained: {format_names(integers)}.", fix="Exclude them from the patterns."
        )
    new_members = _choose_groups(optimizer, matched, group) if optimizer else {}
    changed = tuple(name for name, parameter in matched.items() if not parameter.requires_grad)
    for parameter in matched.values():
        parameter.requires_grad_(True)
    order = {id(parameter): index for index, parameter in enumerate(model.parameters())}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for target, added in new_members.values():
        _set_parameters(target, _merge_in_order(target["params"], added, order), names)
        _init_state(optimizer, target, added)
    if optimizer is not None:
        _refresh(optimizer)
    return FreezeResult(parameters=changed, removed=0, added=sum(len(added) for _target, added in new_members.values()))


def _match_parameters(
    model: nn.Module, patterns: Sequence[str], *, operation: str, why: str
) -> dict[str, nn.Parameter]:
    if not patterns:
        raise InvalidConfig(f"{operation} got no pattern.", fix=f'Give a pattern: {operation}(model, "encoder.*").')
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {name: parameters[name] for name in match_names(list(parameters), patterns, option=operation, why=why)}


def _refuse_joint_state(optimizer: torch.optim.Optimizer | None) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidModel(
            "LBFGS keeps one joint state for all parameters.",
            why="This state would not fit other parameters.",
            fix="Freeze or thaw without the optimizer, and build a new one over the trainable parameters.",
        )


def _choose_groups(
    optimizer: torch.optim.Optimizer, matched: Mapping[str, nn.Parameter], group: str | int | None
) -> dict[int, tuple[Group, list[nn.Parameter]]]:
    """Choose a group for each parameter that is in none; return the groups and their new parameters by group index."""
    groups: list[Group] = optimizer.param_groups
    in_optimizer = {id(parameter) for each in groups for parameter in each["params"]}
    group_index = _find_group(groups, group) if group is not None else None
    new_members: dict[int, tuple[Group, list[nn.Parameter]]] = {}
    for parameter in matched.values():
        if id(parameter) in in_optimizer:
            continue
        in_optimizer.add(id(parameter))  # a tied weight appears under each name
        index = _choose_group(groups, parameter) if group_index is None else group_index
        new_members.setdefault(index, (groups[index], []))[1].append(parameter)
    return new_members


def _choose_group(groups: Sequence[Group], parameter: nn.Parameter) -> int:
    if len(groups) == 1:
        return 0
    decays = [each.get("weight_decay") for each in groups]
    equal_otherwise = all(_settings(each) == _settings(groups[0]) for each in groups[1:])
    if len(groups) == 2 and equal_otherwise and sorted(bool(each) for each in decays) == [False, True]:
        return next(index for index, each in enumerate(decays) if bool(each) == (parameter.ndim >= 2))
    raise InvalidModel(
        f"The optimizer has {len(groups)} groups, and the right one is ambiguous: {_describe_groups(groups)}.",
        why="The learning rate and weight decay of the thawed parameters would be a guess.",
        fix="Pass the group's index or name as group=.",
    )


def _settings(group: Group) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "name", "weight_decay", "param_names")}


def _find_group(groups: Sequence[Group], group: str | int) -> int:
    for index, each in enumerate(groups):
        if group in (index, each.get("name")):
            return index
    raise InvalidConfig(f"There is no group {group!r}.", fix=f"The groups are {_describe_groups(groups)}.")


def _describe_groups(groups: Sequence[Group]) -> str:
    parts: list[str] = []
    for index, group in enumerate(groups):
        name = f" {group['name']!r}" if "name" in group else ""
        decay = f", weight decay {group['weight_decay']:g}" if "weight_decay" in group else ""
        parts.append(f"{index}{name} (lr {float(group['lr']):g}{decay})")
    return ", ".join(parts)


def _set_parameters(group: Group, parameters: list[nn.Parameter], names: Mapping[int, str]) -> None:
    """Replace the parameters of a group, and their names if the optimizer has named parameters."""
    if "param_names" in group:
        old_names = {id(each): name for each, name in zip(group["params"], group["param_names"], strict=True)}
        group["param_names"] = [old_names.get(id(each)) or names[id(each)] for each in parameters]
    group["params"] = parameters


def _init_state(optimizer: torch.optim.Optimizer | None, group: Group, added: Sequence[nn.Parameter]) -> None:
    """Initialise the state of new parameters in Adagrad, which creates it at construction, not at the first step."""
    if isinstance(optimizer, torch.optim.Adagrad):
        settings = {key: group[key] for key in ("lr", "initial_accumulator_value", "fused") if key in group}
        optimizer.state.update(torch.optim.Adagrad(added, **settings).state)


def _refresh(optimizer: torch.optim.Optimizer) -> None:
    """Call ``__setstate__`` as ``load_state_dict`` does, because some optimizers cache lists of their parameters."""
    optimizer.__setstate__({"state": optimizer.state, "param_groups": optimizer.param_groups})


def _merge_in_order(
    existing: Sequence[nn.Parameter], added: Sequence[nn.Parameter], order: Mapping[int, int]
) -> list[nn.Parameter]:
    indices = [order.get(id(parameter), -1) for parameter in existing]
    merged = [*existing, *added]
    is_ordered = -1 not in indices and indices == sorted(indices)
    return sorted(merged, key=lambda each: order[id(each)]) if is_ordered else merged
