"""What every event is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from trueloop.core.findings import CodePosition


class Ref:
    """Stands for one object of the program as long as the run lasts; equal only to itself.

    Holding it does not keep the object alive.
    """

    __slots__ = ("__weakref__", "kind", "name")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        """The class: "AdamW", "Parameter", "Net"."""
        self.name = name
        """For people; becomes better as more is known: "0.weight", then "encoder.0.weight"."""

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"


Refs = frozenset[Ref]
NO_REFS: Refs = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class Event:
    """What every event tells. It is not frozen, which would cost 3 us each; nobody changes one once it is told."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ()
    """The fields that hold the program's own objects: for as long as the event is being told, None afterwards."""
    update: int = 0
    """Updates done before it; said, as the three that follow, when it is told."""
    backward_count: int = 0
    """Backwards begun before it."""
    time_s: float = 0.0
    """When it happened, on the clock of ``time.perf_counter``."""
    overhead_s: float = 0.0
    """Seconds that watching had taken by then, as far as that is timed."""
    location: CodePosition | None = None
    """The user's line that did it; None where no line of the user's is on the stack."""


@dataclass(slots=True, kw_only=True, eq=False)
class TracingGap(Event):
    """RARE. The run was not watched in full since the event before; ``update`` and ``backward_count`` have moved on."""

    updates: int


@dataclass(slots=True, kw_only=True, eq=False)
class WatchEnded(Event):
    """RARE. Nothing more will come."""
