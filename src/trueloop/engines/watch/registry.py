"""Refs for objects of the program, without keeping any of them alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from trueloop.ground.events import Ref, Refs


class Registry:
    """One `Ref` for each object, as long as it lives; a new object in the same place of memory gets a new one."""

    def __init__(self) -> None:
        self._refs: dict[int, tuple[weakref.ref[Any], Ref]] = {}
        self._sets: dict[tuple[int, ...], Refs] = {}
        self._counts: dict[str, int] = {}

    def begin(self) -> None:
        """Number new objects from one again."""
        self._counts.clear()

    def of(self, thing: Any, name: str = "") -> Ref:
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

        ref = Ref(type(thing).__name__, name or self._numbered(type(thing).__name__))
        refs[key] = (weakref.ref(thing, forget), ref)
        return ref

    def many(self, things: Iterable[Any]) -> Refs:
        """Return the refs of some objects; the same set for the same objects, so that it is made once."""
        things = list(things)
        refs = tuple(map(self.of, things))
        key = tuple(map(id, refs))
        known = self._sets.get(key)
        if known is None:
            if len(self._sets) > 256:  # sets of refs whose objects are gone pile up in sweeps over many models
                self._sets.clear()
            known = self._sets[key] = frozenset(refs)
        return known

    def name_parameters(self, model: nn.Module, ref: Ref) -> None:
        """Call the parameters of a model by their names in it, unless a larger model has named them."""
        for name, parameter in model.named_parameters(remove_duplicate=False):
            own = self.of(parameter, name)
            if own.name.count(".") < name.count(".") or own.name.startswith(own.kind):
                own.name = name

    def parameter(self, tensor: Tensor) -> Ref:
        """Return the ref of a parameter that may not have a name yet: "Parameter 10x4"."""
        return self.of(tensor, f"{type(tensor).__name__} {'x'.join(map(str, tensor.shape)) or 'scalar'}")

    def _numbered(self, kind: str) -> str:
        self._counts[kind] = count = self._counts.get(kind, 0) + 1
        return kind if count == 1 else f"{kind} {count}"
