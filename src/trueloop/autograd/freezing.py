"""Freezing and thawing in the middle of a run: what the optimizer holds follows, and the rest keeps its moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trueloop.core.errors import InvalidConfig, InvalidModel
from trueloop.core.name_patterns import format_names, match_names

Group = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What a call of `freeze` or `thaw` did."""

    parameters: tuple[str, ...]
    """Whose ``requires_grad`` changed, in the model's order; a tied weight by each of its names."""
    taken_out: int
    """Parameters that the optimizer held and holds no more."""
    put_in: int
    """Parameters that the optimizer did not hold and now does."""


def freeze(model: nn.Module, *patterns: str, optimizer: torch.optim.Optimizer | None = None) -> Changed:
    """Stop training every parameter whose name matches a shell pattern, and take it out of the optimizer.

    A frozen parameter's gradient and its state (Adam's moments) are dropped: a gradient left behind would count in the
    norm and be stepped once more, and moments of a time long past are no estimate of anything when it is thawed. What
    stays keeps its state, its group and its settings. A group that becomes empty stays, so that a scheduler, which
    counts groups, goes on working.

    A BatchNorm within moves its running statistics while it is in train mode: put that part in eval mode yourself. With
    DistributedDataParallel, freeze and thaw first and wrap again: it decides when wrapped for which gradients to wait.

    Args:
        model: modified; nothing is changed when anything is wrong.
        patterns: "backbone.*", "*.bias"; case-sensitive.
        optimizer: modified; None leaves it to the caller.

    Raises:
        InvalidConfig: no pattern, or one that matches no parameter.
        InvalidModel: an optimizer whose state is not kept for each parameter (LBFGS).
    """
    chosen = _chosen(model, patterns, asked="freeze", why="The part meant to be frozen would go on being trained.")
    _refuse_joint_state(optimizer)
    changed = tuple(name for name, parameter in chosen.items() if parameter.requires_grad)
    for parameter in chosen.values():
        parameter.requires_grad_(False)
        parameter.grad = None
    gone = {id(parameter) for parameter in chosen.values()}
    taken_out = 0
    for group in optimizer.param_groups if optimizer else ():
        staying = [each for each in group["params"] if id(each) not in gone]
        taken_out += len(group["params"]) - len(staying)
        _refill(group, staying, {})
    if optimizer is not None:
        for parameter in chosen.values():
            optimizer.state.pop(parameter, None)
        _tell(optimizer)
    return Changed(parameters=changed, taken_out=taken_out, put_in=0)


def thaw(
    model: nn.Module,
    *patterns: str,
    optimizer: torch.optim.Optimizer | None = None,
    group: str | int | None = None,
) -> Changed:
    """Train every parameter whose name matches a shell pattern again, and put it into the optimizer, with fresh state.

    The group is the only one there is; or, of two that differ in nothing but weight decay, the decaying one for two
    dimensions or more and the other for biases and normalisation weights; or the one that is named. There it comes in
    the model's order, if what is there is in that order, so that the optimizer's ``state_dict`` fits one that was
    built anew. Groups themselves are never added: a scheduler would not know their rate.

    Args:
        model: modified; nothing is changed when anything is wrong.
        patterns: "backbone.layer4.*"; case-sensitive.
        optimizer: modified; None leaves it to the caller.
        group: place or ``name`` of the group that takes them all, where the choice is not plain.

    Raises:
        InvalidConfig: no pattern, one that matches no parameter, or a group that there is not.
        InvalidModel: it cannot be told which group is meant, an integer parameter, or an LBFGS.
    """
    chosen = _chosen(model, patterns, asked="thaw", why="The part meant to be trained would stay as it is.")
    _refuse_joint_state(optimizer)
    whole = [name for name, each in chosen.items() if not (each.is_floating_point() or each.is_complex())]
    if whole:
        raise InvalidModel(
            f"Parameters of whole numbers cannot be trained: {format_names(whole)}.",
            fix="Leave them out of the patterns.",
        )
    targets = _targets(optimizer, chosen, group) if optimizer else {}
    changed = tuple(name for name, parameter in chosen.items() if not parameter.requires_grad)
    for parameter in chosen.values():
        parameter.requires_grad_(True)
    order = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for target, added in targets.values():
        _refill(target, _merged(target["params"], added, order), names)
        _start(optimizer, target, added)
    if optimizer is not None:
        _tell(optimizer)
    return Changed(parameters=changed, taken_out=0, put_in=sum(len(added) for _target, added in targets.values()))


def _chosen(model: nn.Module, patterns: Sequence[str], *, asked: str, why: str) -> dict[str, nn.Parameter]:
    if not patterns:
        raise InvalidConfig(f"{asked} was given no pattern.", fix=f'Name some parameters: {asked}(model, "encoder.*").')
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return {name: parameters[name] for name in match_names(list(parameters), patterns, option=asked, why=why)}


def _refuse_joint_state(optimizer: torch.optim.Optimizer | None) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidModel(
            "LBFGS keeps one state for all parameters together.",
            why="Its history would not fit what is left.",
            fix="Freeze or thaw first, and build a new optimizer over what is left to train.",
        )


def _targets(
    optimizer: torch.optim.Optimizer, chosen: Mapping[str, nn.Parameter], group: str | int | None
) -> dict[int, tuple[Group, list[nn.Parameter]]]:
    """Return the groups that get something by place, each with what it gets."""
    groups: list[Group] = optimizer.param_groups
    held = {id(parameter) for each in groups for parameter in each["params"]}
    fixed = _named(groups, group) if group is not None else None
    targets: dict[int, tuple[Group, list[nn.Parameter]]] = {}
    for parameter in chosen.values():
        if id(parameter) in held:
            continue
        held.add(id(parameter))  # a tied weight comes by each of its names
        place = _place_for(groups, parameter) if fixed is None else fixed
        targets.setdefault(place, (groups[place], []))[1].append(parameter)
    return targets


def _place_for(groups: Sequence[Group], parameter: nn.Parameter) -> int:
    if len(groups) == 1:
        return 0
    decays = [each.get("weight_decay") for each in groups]
    alike = all(_settings(each) == _settings(groups[0]) for each in groups[1:])
    if len(groups) == 2 and alike and sorted(bool(each) for each in decays) == [False, True]:
        return next(place for place, each in enumerate(decays) if bool(each) == (parameter.ndim >= 2))
    raise InvalidModel(
        f"The optimizer has {len(groups)} groups, and it cannot be told which is meant: {_described(groups)}.",
        why="Rate and weight decay of what is thawed would be a guess.",
        fix="Give group=, its place or its name.",
    )


def _settings(group: Group) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "name", "weight_decay", "param_names")}


def _named(groups: Sequence[Group], group: str | int) -> int:
    for place, each in enumerate(groups):
        if group in (place, each.get("name")):
            return place
    raise InvalidConfig(f"There is no group {group!r}.", fix=f"The groups are {_described(groups)}.")


def _described(groups: Sequence[Group]) -> str:
    told: list[str] = []
    for place, group in enumerate(groups):
        name = f" {group['name']!r}" if "name" in group else ""
        decay = f", weight decay {group['weight_decay']:g}" if "weight_decay" in group else ""
        told.append(f"{place}{name} (lr {float(group['lr']):g}{decay})")
    return ", ".join(told)


def _refill(group: Group, parameters: list[nn.Parameter], names: Mapping[int, str]) -> None:
    """Give a group other parameters; an optimizer that was made from named ones keeps their names beside them."""
    if "param_names" in group:
        known = {id(each): name for each, name in zip(group["params"], group["param_names"], strict=True)}
        group["param_names"] = [known.get(id(each)) or names[id(each)] for each in parameters]
    group["params"] = parameters


def _start(optimizer: torch.optim.Optimizer | None, group: Group, added: Sequence[nn.Parameter]) -> None:
    """Make the state of an optimizer that makes it when it is built, not at the first step: Adagrad, of torch's own."""
    if isinstance(optimizer, torch.optim.Adagrad):
        made = {key: group[key] for key in ("lr", "initial_accumulator_value", "fused") if key in group}
        optimizer.state.update(torch.optim.Adagrad(added, **made).state)


def _tell(optimizer: torch.optim.Optimizer) -> None:
    """Say that groups and state have changed, as ``load_state_dict`` does at its end: some keep lists of what was."""
    optimizer.__setstate__({"state": optimizer.state, "param_groups": optimizer.param_groups})


def _merged(
    there: Sequence[nn.Parameter], added: Sequence[nn.Parameter], order: Mapping[int, int]
) -> list[nn.Parameter]:
    places = [order.get(id(parameter), -1) for parameter in there]
    both = [*there, *added]
    return sorted(both, key=lambda each: order[id(each)]) if -1 not in places and places == sorted(places) else both
