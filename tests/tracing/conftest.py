"""An attachment of all hooks, the events that they report, and trackers of these events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import Event, handlers
from trueloop.tracing.hooks import all_hooks
from trueloop.tracing.tracker import Tracker

AnyTracker = TypeVar("AnyTracker", bound=Tracker)


@pytest.fixture
def attached() -> Iterator[tuple[Attachment, Callable[[type[Event]], list]]]:
    """The attachment of all hooks, and a function that returns the reported events of one type."""
    events: list[Event] = []
    attachment = Attachment(all_hooks)
    listener = events.append
    attachment.attach(listener)
    yield attachment, lambda event_type: [event for event in events if type(event) is event_type]
    attachment.detach(listener)
    assert not attachment.stream.problems


@pytest.fixture
def track(attached) -> Iterator[Callable[[type[AnyTracker]], AnyTracker]]:
    """A function that creates a tracker, which receives the events of the attachment from then on."""
    stream, listeners = attached[0].stream, []

    def connect(kind: type[AnyTracker]) -> AnyTracker:
        tracker = kind()
        methods = {event_type: getattr(tracker, name) for event_type, name in handlers(kind).items()}
        listeners.append(lambda event: methods[type(event)](event))
        stream.subscribe(listeners[-1], *methods)
        return tracker

    yield connect
    for listener in listeners:
        stream.unsubscribe(listener)
