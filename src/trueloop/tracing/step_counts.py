"""Counts the updates of each parameter."""

import weakref
from collections.abc import Mapping

from trueloop.tracing.events import NO_REFS, Ref, Refs


class StepCounts:
    """How often each parameter was updated; updates of the same parameters in a row are added together.

    Cost: 0.1 us for an update of the same parameters as the one before, otherwise 1 us for each parameter.
    """

    __slots__ = ("_counts", "_latest", "_times")

    def __init__(self) -> None:
        self._counts: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._latest, self._times = NO_REFS, 0

    def add(self, parameters: Refs) -> None:
        """Count an update."""
        if parameters is not self._latest:
            self.counts()
            self._latest = parameters
        self._times += 1

    def counts(self) -> Mapping[Ref, int]:
        """Return the number of updates of each parameter that was updated."""
        if self._times:
            for each in self._latest:
                self._counts[each] = self._counts.get(each, 0) + self._times
            self._times = 0
        return self._counts
