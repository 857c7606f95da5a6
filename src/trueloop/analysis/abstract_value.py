"""What the names of a program stand for, as far as its text tells."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final


class ValueKind(StrEnum):
    """Kinds of things."""

    MODEL = "model"
    """A module of torch's, a layer as well as a whole network."""
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    SCALER = "scaler"
    LOADER = "loader"
    DATASET = "dataset"
    SAMPLER = "sampler"
    LOSS = "loss"
    """A module or function that turns predictions and targets into a loss."""
    PARAMETERS = "parameters"
    """Some or all parameters of models."""
    STATE = "state"
    """What ``state_dict()`` returned; its tensors are the live ones."""
    TENSOR = "tensor"
    """A value that was computed, or a batch."""
    ACCELERATOR = "accelerator"
    """Hugging Face's Accelerator or Lightning's Fabric: it takes part in backward and in steps."""
    SEQUENCE = "sequence"
    """A tuple, list, set or dictionary written out."""
    CONSTANT = "constant"
    FUNCTION = "function"
    """Defined in this file; ``node`` is its definition."""
    CLASS = "class"
    """Defined in this file."""
    INSTANCE = "instance"
    """Of a class of this file that is none of the kinds above."""
    NAME = "name"
    """Something imported or built in: ``name`` says what."""
    UNKNOWN = "unknown"


NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(eq=False, slots=True, kw_only=True)
class AbstractValue:
    """One thing of a program; two are the same thing only if they are the same object, see `may_alias`."""

    kind: ValueKind
    name: str = ""
    """The qualified name of what made it: "torch.optim.AdamW", of a tensor the last operation: "torch.softmax"."""
    node: Any = None
    """The expression that made it, or the definition of a function or class."""
    sources: tuple[AbstractValue, ...] = ()
    """What it was made from: the model of parameters, the parameters of an optimizer, the optimizer of a scheduler, the
    dataset of a loader, the inputs of an operation on tensors."""
    arguments: Mapping[str, AbstractValue] = field(default_factory=lambda: NO_ARGUMENTS)
    """The arguments it was made with, by keyword, or by "0", "1" ... for their positions."""
    value: Any = None
    """Of a constant."""
    attributes: dict[str, AbstractValue] = field(default_factory=dict[str, "AbstractValue"])
    """Of an instance or a module defined in this file, and of a sequence by "[key]"."""
    owners: tuple[AbstractValue, ...] = ()
    """Of a module: the modules that it is an attribute or a layer of."""
    union: tuple[AbstractValue, ...] = ()
    """Where the program's branches made it in different ways: all of them."""
    facts: Set[str] = frozenset()
    """Words about it, see `MAYBE_NONE` and those that follow."""
    loops: tuple[Any, ...] | None = None
    """Of a sequence, an instance or a module: the syntax nodes of the loops that ran while it was made, so that each of
    their turns makes another one; None where that is not known."""
    scope: Any = None
    """Of a function: where it was defined, for whoever reads the program."""

    def constant(self, default: Any = None) -> Any:
        """Return its value, where it is written out in the text."""
        return self.value if self.kind is ValueKind.CONSTANT else default

    def alternatives(self) -> Iterator[AbstractValue]:
        """Yield what it can be: itself, or each way it was made."""
        if not self.union:
            yield self
        for each in self.union:
            yield from each.alternatives()

    def may_alias(self, other: AbstractValue) -> bool:
        """True where both can be one object, or one wraps the other as DistributedDataParallel does."""
        mine = {id(each) for each in _unwrap(self)}
        return any(id(each) in mine for each in _unwrap(other))

    def models(self) -> list[AbstractValue]:
        """Return the models whose parameters a thing has: of an optimizer those given to it, of a wrapper the inner."""
        found, queue = list[AbstractValue](), list(_unwrap(self))
        while queue:
            each = queue.pop()
            if each.kind is ValueKind.MODEL:
                if all(each is not known for known in found):
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

    def with_enclosing_modules(self) -> list[AbstractValue]:
        """Return a module and all that it is a part of."""
        found: list[AbstractValue] = [self]
        for each in found:
            above = [*each.owners, *(each.sources if SUBMODULE in each.facts else ())]
            found += [inner for part in above for inner in _unwrap(part) if all(inner is not k for k in found)]
        return found

    def covers(self, other: AbstractValue) -> bool:
        """True where a model, parameters or an optimizer hold some parameters of another, as far as the text tells.

        A part of a model is held by the model; a whole model is not held by one that holds a part of it.
        """
        mine = {id(each) for each in self.models()}
        return any(id(above) in mine for model in other.models() for above in model.with_enclosing_modules())

    def last_layer(self) -> AbstractValue:
        """Return the last layer of a chain of layers that the text writes out; the module itself, if it is none."""
        layer = self
        while layer.name == SEQUENTIAL and layer.sources:
            held = {key: each for key, each in layer.attributes.items() if SUBMODULE not in each.facts}
            written = getattr(layer.node, "args", ())
            if len(written) != len(layer.sources) or any(isinstance(each, ast.Starred) for each in written):
                break  # some were added later or elsewhere, perhaps on a condition
            if held != {f"[{number}]": each for number, each in enumerate(layer.sources)}:
                break  # one was put in another's place
            layer = layer.sources[-1]
        return layer

    def origin(self, views: Container[str] = (), *, items: bool = False) -> AbstractValue | None:
        """Return what computed a tensor, through models of this file; None if it is not certain.

        That is the result of an operation or of a layer, or the last layer of a chain of them.

        Args:
            views: names of operations to look through.
            items: look through what is taken out of a tensor by an index, too.
        """
        ways = list(self.alternatives())
        if len(ways) > 1:
            found = [each.origin(views, items=items) for each in ways]
            same = {"" if each is None else each.name for each in found}
            return found[0] if len(same) == 1 else None
        value = ways[0]
        inner = value.attributes.get(FORWARD_RESULT)
        if inner is not None and inner.kind is not ValueKind.TENSOR:
            last = inner.last_layer()
            return None if last.name == SEQUENTIAL else value if last is inner else last
        item = items and isinstance(value.node, ast.Subscript)
        if inner is None and value.sources and (item or value.name in views):
            inner = value.sources[0]
        if inner is not None:
            return inner.origin(views, items=items)
        return value if value.name and isinstance(value.node, ast.Call) else None

    def autograd_graph(self, limit: int = 2000) -> Iterator[AbstractValue]:
        """Yield it and all a backward from it goes through, each once: nothing behind ``detach()`` or ``no_grad``."""
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
        """Yield it and everything it was computed from, each once."""
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
"""The attribute of a model's output that says what its forward returned, or which module computed it."""
GRAD: Final = "grad"
"""The name of the gradient of the parameters in ``sources``."""
MAYBE_NONE: Final = "maybe"
"""None in some branch."""
MANAGED: Final = "managed"
"""Handed to an Accelerator or the like, which takes part in what happens to it."""
WRAPPER: Final = "wrapper"
"""Stands around the model in ``sources``: DistributedDataParallel."""
SUBMODULE: Final = "part"
"""A module within the model in ``sources``, of which the text tells no more."""
NO_GRAPH: Final = "no graph"
"""A tensor computed without gradients, detached, or read out as a number."""
LEAF: Final = "leaf"
"""A tensor that wants gradients, made from values alone: nothing behind it gets any."""
FROZEN: Final = "frozen"
"""Its ``requires_grad`` was turned off."""
COPY: Final = "copied"
"""A copy, that does not follow what it was made from."""
EXTERNAL: Final = "given"
"""Came from outside, as an argument of a function that this file does not call."""


def unknown_value(node: ast.AST | None = None, *of: AbstractValue) -> AbstractValue:
    """Make a thing of which nothing is known but what it came from."""
    return AbstractValue(kind=ValueKind.UNKNOWN, node=node, sources=of)


def parameters_of_gradient(gradient: AbstractValue) -> AbstractValue:
    """Return the parameters a gradient is of."""
    while gradient.name == GRAD and gradient.sources:
        gradient = gradient.sources[0]
    return gradient


def join_values(one: AbstractValue, other: AbstractValue) -> AbstractValue:
    """Return what something is after two branches have each made it in their own way."""
    if one is other:
        return one
    kept: list[AbstractValue] = [
        each for each in (one, other) if not (each.kind is ValueKind.CONSTANT and each.value is None)
    ]
    if len(kept) == 1:
        if MAYBE_NONE in kept[0].facts:
            return kept[0]
        only = AbstractValue(kind=kept[0].kind, name=kept[0].name, node=kept[0].node, union=(kept[0],))
        only.sources, only.arguments, only.attributes = kept[0].sources, kept[0].arguments, kept[0].attributes
        only.scope = kept[0].scope
        only.facts = {*kept[0].facts, MAYBE_NONE}
        return only
    if not kept:
        return one
    ways = tuple({id(way): way for each in kept for way in each.alternatives()}.values())
    if len(ways) == 1:
        return kept[0]
    kind = one.kind if one.kind is other.kind else ValueKind.UNKNOWN
    name = one.name if one.name == other.name else ""
    both = AbstractValue(kind=kind, name=name, node=one.node, union=ways, facts=one.facts & other.facts)
    both.sources = tuple({id(each): each for way in ways for each in way.sources}.values())
    return both


def _unwrap(value: AbstractValue) -> Iterator[AbstractValue]:
    for each in value.alternatives():
        yield each
        if WRAPPER in each.facts:
            for inner in each.sources:
                yield from _unwrap(inner)
