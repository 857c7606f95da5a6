"""Settings of layers that do not mean what they seem to; read when a model is first trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, cast

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from trueloop.tracing.program_text.attribute_readers import kept, read_in_program
from trueloop.tracing.program_text.freezing import MISSPELLED, RIGHT

LARGE: Final = 0.9
"""From here on the running statistics are those of the latest batch or two; 1 is a choice, and so is None."""
OUTWEIGHS: Final = 0.1
"""Added to a variance, which is about 1 behind any sensible initialisation; torch's own is 1e-5."""
WORDS: Final = MISSPELLED | {RIGHT}


class Alike(NamedTuple):
    """Layers of one setting."""

    first: nn.Module
    value: float
    layers: int


def find_dominating_epsilon(model: nn.Module) -> list[Alike]:
    """Return the batch normalisations, by epsilon, in which that takes a good part of what is divided by."""
    return _alike((each, each.eps) for each in _normalising(model) if each.eps >= OUTWEIGHS)


def find_high_momentum(model: nn.Module) -> list[Alike]:
    """Return the batch normalisations, by momentum, whose running statistics forget nearly all at every batch."""
    settings = [(each, cast("Any", each).momentum) for each in _normalising(model) if each.track_running_stats]
    return _alike(
        (each, momentum) for each, momentum in settings if isinstance(momentum, float) and LARGE <= momentum < 1
    )


def _normalising(model: nn.Module) -> Iterator[_BatchNorm]:
    return (each for each in model.modules() if isinstance(each, _BatchNorm) and each.training)


def _alike(settings: Iterable[tuple[nn.Module, float]]) -> list[Alike]:
    found: dict[float, list[nn.Module]] = {}
    for layer, value in settings:
        found.setdefault(float(value), []).append(layer)
    return [Alike(layers[0], value, len(layers)) for value, layers in found.items()]


class InVain(NamedTuple):
    """Modules, or parameters, that one attribute was to freeze or to thaw."""

    attribute: str
    value: bool
    modules: bool
    names: list[str]
    parameters: list[Tensor]


def find_ineffective_freezes(model: nn.Module) -> list[InVain]:
    """Return attributes that look like ``requires_grad``, that nothing reads, and that say what is not so.

    A module of the user's, or of a library's, that has to do with such an attribute of its own keeps a setting, and so
    does whoever may read it elsewhere in the program.

    Cost: 1 us for each module and each parameter; where one has such an attribute, the text of its class is read, and
    once, where that has nothing to do with it, the text of the program.
    """
    found: dict[tuple[str, bool, bool], InVain] = {}
    outer: list[str] = []
    for name, module in model.named_modules():
        if any(not above or name.startswith(f"{above}.") for above in outer):
            continue
        for word, value in _marks(module):
            own: list[Tensor] = list(module.parameters())
            if own and all(each.requires_grad is not value for each in own) and not kept(type(module), word):
                outer.append(name)
                _add(found, InVain(word, value, True, [name], own))
    for name, parameter in model.named_parameters():
        for word, value in _marks(parameter):
            if parameter.requires_grad is not value and not kept(type(parameter), word):
                _add(found, InVain(word, value, False, [name], [parameter]))
    return [each for each in found.values() if not read_in_program(each.attribute, of_modules=each.modules)]


def _marks(thing: nn.Module | Tensor) -> list[tuple[str, bool]]:
    own = vars(thing)
    if not own or own.keys().isdisjoint(WORDS):
        return []
    return [(word, own[word]) for word in sorted(WORDS & own.keys()) if isinstance(own[word], bool)]


def _add(found: dict[tuple[str, bool, bool], InVain], each: InVain) -> None:
    same = found.setdefault((each.attribute, each.value, each.modules), each)
    if same is not each:
        same.names.extend(each.names)
        known = set(map(id, same.parameters))
        same.parameters.extend(parameter for parameter in each.parameters if id(parameter) not in known)
