"""Finds layer settings with an unintended effect, when a model is first trained."""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, cast

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from trueloop.tracing.program_text.attribute_readers import is_read_in_program, uses_attribute
from trueloop.tracing.program_text.freezing import MISSPELLINGS, REQUIRES_GRAD

HIGH_MOMENTUM: Final = 0.9
"""With this momentum or more, running statistics reflect only the latest one or two batches; 1 is deliberate."""
HIGH_EPSILON: Final = 0.1
"""An epsilon of this size matters, since the variance is about 1 after usual initialisations; the default is 1e-5."""
ATTRIBUTES: Final = MISSPELLINGS | {REQUIRES_GRAD}


class SharedSetting(NamedTuple):
    """The same setting of several layers."""

    first: nn.Module
    """The first of the layers."""
    value: float
    layers: int
    """Number of layers with this value."""


def find_dominating_epsilon(model: nn.Module) -> list[SharedSetting]:
    """Return the BatchNorm layers whose epsilon is large compared with the variance, grouped by epsilon."""
    return _group_by_value((each, each.eps) for each in _training_batchnorms(model) if each.eps >= HIGH_EPSILON)


def find_high_momentum(model: nn.Module) -> list[SharedSetting]:
    """Return the BatchNorm layers that nearly replace their running statistics at every batch, grouped by momentum."""
    settings = [(each, cast("Any", each).momentum) for each in _training_batchnorms(model) if each.track_running_stats]
    return _group_by_value(
        (each, momentum) for each, momentum in settings if isinstance(momentum, float) and HIGH_MOMENTUM <= momentum < 1
    )


def _training_batchnorms(model: nn.Module) -> Iterator[_BatchNorm]:
    return (each for each in model.modules() if isinstance(each, _BatchNorm) and each.training)


def _group_by_value(settings: Iterable[tuple[nn.Module, float]]) -> list[SharedSetting]:
    found: dict[float, list[nn.Module]] = {}
    for layer, value in settings:
        found.setdefault(float(value), []).append(layer)
    return [SharedSetting(layers[0], value, len(layers)) for value, layers in found.items()]


class UnreadAttribute(NamedTuple):
    """An attribute that was set to freeze or unfreeze modules or parameters, and that no code reads."""

    attribute: str
    value: bool
    modules: bool
    names: list[str]
    parameters: list[Tensor]


def find_ineffective_freezes(model: nn.Module) -> list[UnreadAttribute]:
    """Return attributes named like ``requires_grad`` that no code reads and that contradict the actual setting.

    An attribute that the module's own class uses, or that other code may read, may have a purpose and is left out.

    Cost: 1 us for each module and parameter. If one has such an attribute, its class is parsed, and if the class does
    not use the attribute, the source code of the program is parsed too, once.
    """
    found: dict[tuple[str, bool, bool], UnreadAttribute] = {}
    reported: list[str] = []
    for name, module in model.named_modules():
        if any(not parent or name.startswith(f"{parent}.") for parent in reported):
            continue
        for attribute, value in _freeze_attributes(module):
            own: list[Tensor] = list(module.parameters())
            contradicts = own and all(each.requires_grad is not value for each in own)
            if contradicts and not uses_attribute(type(module), attribute):
                reported.append(name)
                _add(found, UnreadAttribute(attribute, value, True, [name], own))
    for name, parameter in model.named_parameters():
        for attribute, value in _freeze_attributes(parameter):
            if parameter.requires_grad is not value and not uses_attribute(type(parameter), attribute):
                _add(found, UnreadAttribute(attribute, value, False, [name], [parameter]))
    return [each for each in found.values() if not is_read_in_program(each.attribute, of_modules=each.modules)]


def _freeze_attributes(owner: nn.Module | Tensor) -> list[tuple[str, bool]]:
    own = vars(owner)
    if not own or own.keys().isdisjoint(ATTRIBUTES):
        return []
    return [
        (attribute, own[attribute]) for attribute in sorted(ATTRIBUTES & own.keys()) if isinstance(own[attribute], bool)
    ]


def _add(found: dict[tuple[str, bool, bool], UnreadAttribute], each: UnreadAttribute) -> None:
    same = found.setdefault((each.attribute, each.value, each.modules), each)
    if same is not each:
        same.names.extend(each.names)
        known = set(map(id, same.parameters))
        same.parameters.extend(parameter for parameter in each.parameters if id(parameter) not in known)
