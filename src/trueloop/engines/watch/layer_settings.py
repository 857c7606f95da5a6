"""Settings of layers that do not mean what they seem to; read when a model is first trained."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from trueloop.ground.freezing import MISSPELLED, RIGHT

LARGE: Final = 0.9
"""From here on the running statistics are those of the latest batch or two; 1 is a choice, and so is None."""
WORDS: Final = MISSPELLED | {RIGHT}
_ANY_WORD: Final = frozenset(("setattr", "vars", "__dict__"))
"""With these a method sets attributes whose names do not stand in it."""


class Forgetful(NamedTuple):
    """Batch normalisations of one momentum."""

    first: nn.Module
    momentum: float
    layers: int


def forgetful(model: nn.Module) -> list[Forgetful]:
    """Return the batch normalisations, by momentum, whose running statistics forget nearly all at every batch."""
    found: dict[float, list[nn.Module]] = {}
    for each in model.modules():
        if isinstance(each, _BatchNorm) and each.training and each.track_running_stats:
            momentum: Any = each.momentum
            if isinstance(momentum, float) and LARGE <= momentum < 1:
                found.setdefault(momentum, []).append(each)
    return [Forgetful(layers[0], momentum, len(layers)) for momentum, layers in found.items()]


class InVain(NamedTuple):
    """Modules, or parameters, that one attribute was to freeze or to thaw."""

    attribute: str
    value: bool
    modules: bool
    names: list[str]
    parameters: list[Tensor]


def frozen_in_vain(model: nn.Module) -> list[InVain]:
    """Return attributes that look like ``requires_grad``, that nothing reads, and that say what is not so.

    A module of the user's, or of a library's, that has to do with such an attribute of its own keeps a setting.

    Cost: 1 us for each module and each parameter; where one has such an attribute, the text of its class is read.
    """
    found: dict[tuple[str, bool, bool], InVain] = {}
    outer: list[str] = []
    for name, module in model.named_modules():
        if any(not above or name.startswith(f"{above}.") for above in outer):
            continue
        for word, value in _marks(module):
            own: list[Tensor] = list(module.parameters())
            if own and all(each.requires_grad is not value for each in own) and not _kept(type(module), word):
                outer.append(name)
                _add(found, InVain(word, value, True, [name], own))
    for name, parameter in model.named_parameters():
        for word, value in _marks(parameter):
            if parameter.requires_grad is not value:
                _add(found, InVain(word, value, False, [name], [parameter]))
    return list(found.values())


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


def _kept(kind: type[nn.Module], word: str) -> bool:
    """Return True where a class that is not torch's own declares the attribute, or uses it of ``self``."""
    for each in kind.__mro__:
        if each is object or each.__module__.split(".")[0] == "torch":
            continue
        if (word in vars(each) or word in vars(each).get("__annotations__", ())) or any(
            _uses(code, word) for code in _methods(each)
        ):
            return True
    return False


def _methods(kind: type) -> Iterator[CodeType]:
    for value in vars(kind).values():
        for part in ("__func__", "fget", "fset", "func", None):
            function: Any = getattr(value, part, None) if part else value
            code = getattr(inspect.unwrap(function), "__code__", None)
            if isinstance(code, CodeType):
                yield code


def _uses(code: CodeType, word: str) -> bool:
    if not _names(code, word):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return True  # nobody can say what it does with it
    own = code.co_varnames[0] if code.co_argcount else ""
    for each in ast.walk(tree):
        if isinstance(each, ast.Attribute) and _is(each.value, own) and each.attr in (word, "__dict__"):
            return True
        if isinstance(each, ast.Constant) and each.value == word:
            return True
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in _ANY_WORD and each.args:
            written = len(each.args) > 1 and isinstance(each.args[1], ast.Constant)
            if _is(each.args[0], own) and not written:
                return True
    return False


def _names(code: CodeType, word: str) -> bool:
    """Return True where code, or a function within it, has to do with an attribute."""
    if word in code.co_names or word in code.co_consts or not _ANY_WORD.isdisjoint(code.co_names):
        return True
    return any(_names(each, word) for each in code.co_consts if isinstance(each, CodeType))


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
