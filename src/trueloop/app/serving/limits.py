"""Limits of requests, as options of the command line."""

from dataclasses import dataclass
from typing import Final

from trueloop.app.option_types import Count
from trueloop.core.errors import InvalidConfig

MAX_TIMEOUT_S: Final = 86_400
MAX_BODY_MIB: Final = 2048  # a body is copied several times in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a request."""

    max_batch: Count = 32
    """Largest number of samples per batch, and per request."""
    max_delay_ms: float = 2.0
    """Milliseconds that a request waits for others to join its batch."""
    max_waiting: Count = 256
    """Largest number of waiting samples; further requests get status 503."""
    max_body_mib: float = 1.0
    """Largest request body in MiB."""
    timeout_s: float = 10.0
    """Seconds in which a request must arrive and be answered."""

    def __post_init__(self) -> None:
        """Validate the limits."""
        valid_counts = 1 <= self.max_batch <= self.max_waiting
        valid_times = 0 <= self.max_delay_ms < 1000 * self.timeout_s and self.timeout_s <= MAX_TIMEOUT_S
        if not valid_counts or not valid_times or not 0 < self.max_body_mib <= MAX_BODY_MIB:
            raise InvalidConfig(
                f"These limits are impossible: {self}.",
                fix="max_batch must be at least 1, max_waiting at least max_batch, max_delay_ms below the timeout, "
                f"timeout_s at most {MAX_TIMEOUT_S}, and max_body_mib above 0 and at most {MAX_BODY_MIB}.",
            )
