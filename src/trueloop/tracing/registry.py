"""Refs for objects of the program, without keeping any of them alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Final

from torch import Tensor, nn

from trueloop.tracing.enclosing_modules import enclosing_modules
from trueloop.tracing.events import NO_REFS, Ref, Refs

MAX_SETS: Final = 256


class Registry:
    """One `Ref` for each object, as long as it lives; a new object in the same place of memory gets a new one."""

    def __init__(self) -> None:
        self._refs: dict[int, tuple[weakref.ref[Any], Ref]] = {}
        self._sets: dict[tuple[int, ...], tuple[tuple[Ref, ...], Refs]] = {}
        """Of objects by id, in one order or another: their refs in this order, and as a set."""
        self._in_sets: set[int] = set()
        self._counts: dict[str, int] = {}

    def reset(self) -> None:
        """Number new objects from one again."""
        self._counts.clear()

    def ref(self, thing: Any, name: str = "") -> Ref:
        """Return the ref of an object, which is named at first sight.

        Args:
            thing: anything that can be referred to weakly.
            name: for people; "" = its class, with a number from the second one on.
        """
        known = self._refs.get(id(thing))
        if known is not None and known[0]() is thing:
            return known[1]
        key, refs = id(thing), self._refs

        def forget(dead: weakref.ref[Any]) -> None:
            if key in refs and refs[key][0] is dead:
                del refs[key]
                if key in self._in_sets:
                    self._in_sets.clear()
                    self._sets.clear()

        ref = Ref(type(thing).__name__, name or self._numbered(type(thing).__name__))
        refs[key] = (weakref.ref(thing, forget), ref)
        return ref

    def refs(self, things: Iterable[Any]) -> Refs:
        """Return the refs of some objects; the same set for the same objects, so that it is made once.

        Cost: 0.3 us, and 0.05 us for each object; the first time, 1 us for each.
        """
        return self.ordered_refs(things)[1]

    def ordered_refs(self, things: Iterable[Any]) -> tuple[tuple[Ref, ...], Refs]:
        """Return the refs of some objects one by one, and those that `refs` returns. Cost: as there."""
        things = things if type(things) is list else list(things)
        if not things:
            return (), NO_REFS
        key = tuple(map(id, things))
        known = self._sets.get(key)  # forgotten as soon as one of them is gone
        if known is None:
            if len(self._sets) >= MAX_SETS:  # a router of experts makes another subset in every update
                self._sets.clear()
                self._in_sets.clear()
            refs = tuple(map(self.ref, things))
            known = self._sets[key] = refs, frozenset(refs)
            self._in_sets.update(key)
        return known

    def uncached_refs(self, things: Iterable[Any]) -> Refs:
        """Return the refs of objects that may never come together again: of such a set nothing is remembered.

        Which parameters had no gradient, or one of zeros, can be another set at every update.

        Cost: 0.3 us for each object.
        """
        return frozenset(map(self.ref, things))

    def name_parameters(self, model: nn.Module) -> None:
        """Call the parameters of a model by their names in it, or in a larger one that the program has in its hands."""
        held = {id(parameter) for parameter in model.parameters()}
        for whole in (model, *enclosing_modules(model)):
            for name, parameter in whole.named_parameters(remove_duplicate=False):
                if id(parameter) in held:
                    own = self.ref(parameter, name)
                    if own.name.count(".") < name.count(".") or own.name.startswith(own.kind):
                        own.name = name

    def parameter_ref(self, tensor: Tensor) -> Ref:
        """Return the ref of a parameter that may not have a name yet: "Parameter 10x4"."""
        return self.ref(tensor, f"{type(tensor).__name__} {'x'.join(map(str, tensor.shape)) or 'scalar'}")

    def _numbered(self, kind: str) -> str:
        self._counts[kind] = count = self._counts.get(kind, 0) + 1
        return kind if count == 1 else f"{kind} {count}"
