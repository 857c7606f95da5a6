"""What a request may cost, as it is asked for on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trueloop.app.option_types import Count
from trueloop.core.errors import InvalidConfig

MAX_TIMEOUT_S: Final = 86_400
MAX_BODY_MIB: Final = 2048  # a body is held in memory, several times over


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
        counts = 1 <= self.max_batch <= self.max_waiting
        times = 0 <= self.max_delay_ms < 1000 * self.timeout_s and self.timeout_s <= MAX_TIMEOUT_S
        if not counts or not times or not 0 < self.max_body_mib <= MAX_BODY_MIB:
            raise InvalidConfig(
                f"These limits cannot work: {self}.",
                fix="max_batch is at least 1, max_waiting at least max_batch, max_delay_ms below the timeout, which is "
                f"at max_batch {MAX_TIMEOUT_S} s; max_body_mib is above 0 and at max_batch {MAX_BODY_MIB}.",
            )
