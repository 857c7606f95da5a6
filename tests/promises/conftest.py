"""Watches with all failures of the catalogue, as `trueloop run` starts them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueloop.failures.load import catalogue
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch


@pytest.fixture
def new_watch() -> Callable[[], Watch]:
    """Create a watch for all failures of the catalogue."""
    return lambda: Watch([WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()])
