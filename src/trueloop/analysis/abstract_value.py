"""Abstract values: what is known from the source code about the values of names and expressions."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final


class ValueKind(StrEnum):
    """Kinds of abstract values."""

    MODEL = "model"
    """An instance of ``torch.nn.Module``: a layer or a network."""
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    SCALER = "scaler"
    LOADER = "loader"
    DATASET = "dataset"
    SAMPLER = "sampler"
    LOSS = "loss"
    """A module or function that computes a loss from predictions and targets."""
    PARAMETERS = "parameters"
    """Some or all parameters of one or more models."""
    STATE = "state"
    """The result of ``state_dict()``, which shares its tensors with the model."""
    TENSOR = "tensor"
    """A computed value or a batch."""
    ACCELERATOR = "accelerator"
    """Hugging Face's Accelerator or Lightning's Fabric, which run backward passes and change steps."""
    SEQUENCE = "sequence"
    """A tuple, list, set or dictionary."""
    CONSTANT = "constant"
    FUNCTION = "function"
    """A function that the file defines; ``node`` is its definition."""
    CLASS = "class"
    """A class that the file defines."""
    INSTANCE = "instance"
    """An instance of a class that the file defines, unless an earlier kind applies."""
    NAME = "name"
    """An imported or built-in object; ``name`` is its qualified name."""
    UNKNOWN = "unknown"


NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(eq=False, slots=True, kw_only=True)
class AbstractValue:
    """A value of the program. Values are compared by identity; see also `may_alias`."""

    kind: ValueKind
    name: str = ""
    """Qualified name of the callable, or for a tensor of the operation, that created the value: "torch.optim.AdamW"."""
    node: Any = None
    """The expression that created the value, or the definition of a function or class."""
    sources: tuple[AbstractValue, ...] = ()
    """Values from which this one was created: the model of parameters, the parameters of an optimizer, the optimizer of
    a scheduler, the dataset of a loader, the inputs of an operation on tensors."""
    arguments: Mapping[str, AbstractValue] = field(default_factory=lambda: NO_ARGUMENTS)
    """Arguments of the call that created the value, by keyword or by position as "0", "1" ..."""
    value: Any = None
    """Value of a constant."""
    attributes: dict[str, AbstractValue] = field(default_factory=dict[str, "AbstractValue"])
    """Attributes of an instance or module defined in the file; items of a sequence by "[key]"."""
    owners: tuple[AbstractValue, ...] = ()
    """Modules that have this module as an attribute or a layer."""
    union: tuple[AbstractValue, ...] = ()
    """The alternatives, if branches of the program create the value in different ways; otherwise empty."""
    facts: Set[str] = frozenset()
    """Properties of the value: `MAYBE_NONE` and the constants defined after it."""
    loops: tuple[Any, ...] | None = None
    """Syntax nodes of the loops that create a sequence, instance or module, another one in each iteration; None if
    unknown."""
    scope: Any = None
    """The scope in which a function was defined, or the class of an instance."""

    def constant(self, default: Any = None) -> Any:
        """Return the value of a constant, or the default for other kinds."""
        return self.value if self.kind is ValueKind.CONSTANT else default

    def alternatives(self) -> Iterator[AbstractValue]:
        """Yield the members of the union, or the value itself if it has none."""
        if not self.union:
            yield self
        for each in self.union:
            yield from each.alternatives()

    def may_alias(self, other: AbstractValue) -> bool:
        """Return True if both may be the same object, or one may wrap the other as DistributedDataParallel does."""
        own_ids = {id(each) for each in _unwrap(self)}
        return any(id(each) in own_ids for each in _unwrap(other))

    def models(self) -> list[AbstractValue]:
        """Return the models whose parameters the value contains; for a wrapper, the wrapped model."""
        found, queue, seen = list[AbstractValue](), list(_unwrap(self)), set[int]()
        while queue:
            each = queue.pop()
            if id(each) in seen:  # a loss that is summed up in a loop reaches the same values on very many ways
                continue
            seen.add(id(each))
            if each.kind is ValueKind.MODEL:
                found.append(each)
            elif each.kind in (
                ValueKind.OPTIMIZER,
                ValueKind.PARAMETERS,
                ValueKind.STATE,
                ValueKind.SEQUENCE,
                ValueKind.LOSS,
            ):
                queue.extend(inner for part in each.sources for inner in _unwrap(part))
        return found

    def add_owner(self, module: AbstractValue) -> None:
        """Note that the value, and so each of its alternatives, is an attribute or a layer of a module."""
        for each in (self, *self.alternatives()):
            if module not in each.owners:
                each.owners = (*each.owners, module)

    def with_enclosing_modules(self) -> list[AbstractValue]:
        """Return the module and all modules that contain it."""
        found: list[AbstractValue] = [self]
        for each in found:
            parents = [*each.owners, *(each.sources if SUBMODULE in each.facts else ())]
            found += [module for part in parents for module in _unwrap(part) if all(module is not m for m in found)]
        return found

    def covers(self, other: AbstractValue) -> bool:
        """Return True if this model, optimizer or set of parameters contains parameters of another value.

        A model covers its submodules; a submodule does not cover the model.
        """
        own_ids = {id(each) for each in self.models()}
        return any(id(module) in own_ids for model in other.models() for module in model.with_enclosing_modules())

    def last_layer(self) -> AbstractValue:
        """Return the last layer of a ``Sequential`` whose layers are all known; else the module itself."""
        layer = self
        while layer.name == SEQUENTIAL and layer.sources:
            arguments = listed_layers(layer.node)
            if EXTENDED not in layer.facts and (
                len(arguments) != len(layer.sources) or any(isinstance(each, ast.Starred) for each in arguments)
            ):
                break  # layers were added later or elsewhere, perhaps conditionally
            known = {key: each for key, each in layer.attributes.items() if SUBMODULE not in each.facts}
            numbered = {f"[{number}]": each for number, each in enumerate(layer.sources)}
            if any(each not in layer.sources for each in known.values()) or not numbered.items() <= known.items():
                break  # a layer was replaced
            layer = layer.sources[-1]
        return layer

    def origin(self, views: Container[str] = (), *, items: bool = False, offsets: bool = False) -> AbstractValue | None:
        """Return the value that shows how a tensor was computed, also within models of the file; None if not certain.

        The origin is the result of an operation or a layer, or the last layer of a ``Sequential``.

        Args:
            views: names of operations to skip.
            items: whether to skip indexing too.
            offsets: whether to skip the addition of a number too, as in ``rate + 1e-6``.
        """
        alternatives = list(self.alternatives())
        if len(alternatives) > 1:
            found = [each.origin(views, items=items, offsets=offsets) for each in alternatives]
            same = {"" if each is None else each.name for each in found}
            return found[0] if len(same) == 1 else None
        value = alternatives[0]
        inner = value.attributes.get(FORWARD_RESULT)
        if inner is not None and inner.kind is not ValueKind.TENSOR:
            last = inner.last_layer()
            return None if last.name == SEQUENTIAL else value if last is inner else last
        item = items and isinstance(value.node, ast.Subscript)
        if inner is None and value.sources and (item or value.name in views):
            inner = value.sources[0]
        if inner is None and offsets and value.name == "binary Add":
            terms = [each for each in value.sources if each.kind is not ValueKind.CONSTANT]
            inner = terms[0] if len(terms) == 1 else None
        if inner is not None:
            return inner.origin(views, items=items, offsets=offsets)
        return value if value.name and isinstance(value.node, ast.Call) else None

    def autograd_graph(self, limit: int = 2000) -> Iterator[AbstractValue]:
        """Yield the value and all values that a backward pass from it reaches, each once."""
        seen: set[int] = {id(self)}
        queue: list[AbstractValue] = [self]
        while queue and len(seen) <= limit:
            value = queue.pop()
            if NO_GRAPH in value.facts:
                continue
            yield value
            for each in (*value.sources, *value.union) if LEAF not in value.facts else ():
                if id(each) not in seen:
                    seen.add(id(each))
                    queue.append(each)

    def ancestors(self, limit: int = 200) -> Iterator[AbstractValue]:
        """Yield the value and all values from which it was computed, each once."""
        seen: set[int] = {id(self)}
        queue: list[AbstractValue] = [self]
        while queue and len(seen) <= limit:
            value = queue.pop()
            yield value
            for each in (*value.sources, *value.union):
                if id(each) not in seen:
                    seen.add(id(each))
                    queue.append(each)


SEQUENTIAL: Final = "torch.nn.Sequential"
FORWARD_RESULT: Final = "()"
"""The attribute of a model's output for the value that its forward returned, or the module that computed it."""
GRAD: Final = "grad"
"""Name of a value that is the gradient of the parameters in its ``sources``."""
MAYBE_NONE: Final = "maybe none"
"""Fact: the value is None in some branch."""
MANAGED: Final = "managed"
"""Fact: the value was passed to an Accelerator or Fabric, which runs backward passes and changes steps."""
WRAPPER: Final = "wrapper"
"""Fact: a module that wraps the model in its ``sources``, such as DistributedDataParallel."""
SUBMODULE: Final = "submodule"
"""Fact: an unspecified submodule of the model in its ``sources``."""
NO_GRAPH: Final = "no graph"
"""Fact: a tensor computed without gradients, detached, or converted to a number."""
LEAF: Final = "leaf"
"""Fact: a leaf tensor that requires gradients; no gradient flows to the values that it was created from."""
FROZEN: Final = "frozen"
"""Fact: ``requires_grad`` was turned off."""
COPY: Final = "copy"
"""Fact: the value is an independent copy of another one."""
EXTENDED: Final = "extended"
"""Fact: a ``Sequential`` got layers after its creation, each without a condition."""
EXTERNAL: Final = "external"
"""Fact: an argument of a function that the file does not call."""


def listed_layers(node: Any) -> list[ast.expr]:
    """Return what a call of ``Sequential`` lists: its arguments, or the items of ``OrderedDict([("fc", layer)])``."""
    match node:
        case ast.Call(args=[ast.Call(func=function, args=[ast.List(elts=items)], keywords=[])]) if ast.unparse(
            function
        ).endswith("OrderedDict"):
            return items
        case _:
            return getattr(node, "args", [])


def unknown_value(node: ast.AST | None = None, *sources: AbstractValue) -> AbstractValue:
    """Create a value of unknown kind with its sources."""
    return AbstractValue(kind=ValueKind.UNKNOWN, node=node, sources=sources)


def parameters_of_gradient(gradient: AbstractValue) -> AbstractValue:
    """Return the parameters that a gradient belongs to."""
    while gradient.name == GRAD and gradient.sources:
        gradient = gradient.sources[0]
    return gradient


def join_values(first: AbstractValue, second: AbstractValue) -> AbstractValue:
    """Return the union of the values that two branches assign to the same name."""
    if first is second:
        return first
    present: list[AbstractValue] = [
        each for each in (first, second) if not (each.kind is ValueKind.CONSTANT and each.value is None)
    ]
    if len(present) == 1:
        if MAYBE_NONE in present[0].facts:
            return present[0]
        only = AbstractValue(kind=present[0].kind, name=present[0].name, node=present[0].node, union=(present[0],))
        only.sources, only.arguments, only.attributes = present[0].sources, present[0].arguments, present[0].attributes
        only.scope = present[0].scope
        only.facts = {*present[0].facts, MAYBE_NONE}
        return only
    if not present:
        return first
    union = tuple({id(value): value for each in present for value in each.alternatives()}.values())
    if len(union) == 1:
        return present[0]
    kind = first.kind if first.kind is second.kind else ValueKind.UNKNOWN
    name = first.name if first.name == second.name else ""
    joined = AbstractValue(kind=kind, name=name, node=first.node, union=union, facts=first.facts & second.facts)
    joined.sources = tuple({id(each): each for value in union for each in value.sources}.values())
    return joined


def _unwrap(value: AbstractValue) -> Iterator[AbstractValue]:
    for each in value.alternatives():
        yield each
        if WRAPPER in each.facts:
            for inner in each.sources:
                yield from _unwrap(inner)
