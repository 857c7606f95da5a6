"""Publishes the sanitizer's findings in this process, so that a Trainer can write them to its journal."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from trueloop.core.findings import Finding

Listener = Callable[[Finding], None]
_listeners: list[Listener] = []


@contextmanager
def subscribed(listener: Listener) -> Generator[None]:
    """Call a listener with every finding of this process within a ``with`` block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def publish(finding: Finding) -> None:
    """Call all listeners with a new finding."""
    for listener in _listeners.copy():
        listener(finding)
