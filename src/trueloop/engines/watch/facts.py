"""What is known of objects of the program, by identity and without keeping any of them alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
F = TypeVar("F")


class Facts(Generic[T, F]):
    """One fact for each object. A ``WeakKeyDictionary`` compares objects, and takes five times as long.

    Args:
        make: the fact of an object that is met for the first time.

    Cost: 0.15 us for an object that is known.
    """

    __slots__ = ("_facts", "_make", "_things")

    def __init__(self, make: Callable[[], F]) -> None:
        self._make = make
        self._facts: dict[int, F] = {}
        self._things: dict[int, weakref.ref[T]] = {}

    def get(self, thing: T) -> F | None:
        """Return what is known of an object, None where it was not met yet."""
        return self._facts.get(id(thing))

    def of(self, thing: T) -> F:
        """Return what is known of an object, which is met by this."""
        fact = self._facts.get(id(thing))
        if fact is None:
            fact = self._facts[id(thing)] = self._make()
            self._things[id(thing)] = weakref.ref(thing, self._forgetting(id(thing)))
        return fact

    def forget(self) -> None:
        """Forget every object."""
        self._facts.clear()
        self._things.clear()

    def facts(self) -> list[F]:
        """Return the facts of all objects that are alive."""
        return list(self._facts.values())

    def items(self) -> list[tuple[T, F]]:
        """Return all objects that are alive, with their facts."""
        return [
            (thing, fact)
            for key, fact in list(self._facts.items())
            if (known := self._things.get(key)) is not None and (thing := known()) is not None
        ]

    def _forgetting(self, key: int) -> Callable[[weakref.ref[T]], None]:
        def forget(dead: weakref.ref[T]) -> None:  # before anything else can be in that place of memory
            if self._things.get(key) is dead:
                del self._things[key], self._facts[key]

        return forget
