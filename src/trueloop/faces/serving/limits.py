"""What a request may cost, as it is asked for on the command line."""

from __future__ import annotations

from dataclasses import dataclass

from trueloop.faces.cli.options import Count
from trueloop.ground.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request may cost."""

    max_batch: Count = 32
    """Samples that go through the model together, and that one request may hold."""
    max_delay_ms: float = 2.0
    """Time a request waits for others to go with it."""
    max_waiting: Count = 256
    """Samples that may wait; further requests are answered 503."""
    max_body_mib: float = 1.0
    """Of a request."""
    timeout_s: float = 10.0
    """For a request to arrive, and for its answer."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        sound = self.max_batch >= 1 and self.max_delay_ms >= 0 and self.max_waiting >= self.max_batch
        if not sound or not self.max_body_mib > 0 or not self.timeout_s > 0:
            raise InvalidConfig(
                f"These limits cannot work: {self}.",
                fix="max_batch is at least 1, max_waiting at least max_batch, the others are above 0.",
            )
