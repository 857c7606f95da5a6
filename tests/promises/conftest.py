"""Watches with the whole catalogue, as a user's run is watched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trueloop.failures.load import catalogue
from trueloop.sanitizer.dispatch import WatchedFailure
from trueloop.sanitizer.watch import Watch


@pytest.fixture
def whole() -> Callable[[], Watch]:
    """Make a watch for every failure of the catalogue."""
    return lambda: Watch([WatchedFailure(entry.failure, entry.slug) for entry in catalogue().values()])
