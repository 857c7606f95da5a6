"""What the sanitizer finds while a Trainer trains: for the journal of that run."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from trueloop.core.findings import Finding

Listener = Callable[[Finding], None]
_listeners: list[Listener] = []


@contextmanager
def subscribed(listener: Listener) -> Generator[None]:
    """Tell of every finding of this process, for the length of a ``with`` block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def publish(finding: Finding) -> None:
    """Tell whoever listens of a finding that has just become certain."""
    for listener in _listeners.copy():
        listener(finding)
