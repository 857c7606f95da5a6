"""The base class of events, and references to objects of the program."""

from dataclasses import dataclass
from typing import ClassVar

from trueloop.core.findings import CodePosition


class Ref:
    """A reference to one object of the program for the length of the run; equal only to itself.

    Holding it does not keep the object alive.
    """

    __slots__ = ("__weakref__", "kind", "name")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        """Class name: "AdamW", "Parameter", "Net"."""
        self.name = name
        """Name for messages, refined as more is known: "0.weight", then "encoder.0.weight"."""

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"


Refs = frozenset[Ref]
NO_REFS: Refs = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class Event:
    """The base class of events. Not frozen, which would cost 3 us each, but constant once emitted."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ()
    """The fields that hold the program's own objects during dispatch, and None afterwards."""
    update: int = 0
    """Number of updates before it; set, as the next three fields, when it is emitted."""
    backward_count: int = 0
    """Number of backwards started before it."""
    time_s: float = 0.0
    """Time on the clock of ``time.perf_counter``."""
    overhead_s: float = 0.0
    """Timed tracing overhead until then, in seconds."""
    location: CodePosition | None = None
    """The user's line that caused it; None if no user line is on the stack."""


@dataclass(slots=True, kw_only=True, eq=False)
class TracingGap(Event):
    """RARE. Updates since the previous event were not fully traced; ``update`` and ``backward_count`` have moved on."""

    updates: int


@dataclass(slots=True, kw_only=True, eq=False)
class WatchEnded(Event):
    """RARE. The last event."""
