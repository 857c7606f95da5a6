"""An attachment of all sources, and the events they told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from trueloop.tracing.attach import Attachment
from trueloop.tracing.events import Event
from trueloop.tracing.hooks import all_hooks


@pytest.fixture
def everything() -> Iterator[tuple[Attachment, Callable[[type[Event]], list]]]:
    """The attachment, and a function that gives the events of one kind."""
    events: list[Event] = []
    attachment = Attachment(all_hooks)
    hear = events.append
    attachment.attach(hear)
    yield attachment, lambda kind: [event for event in events if type(event) is kind]
    attachment.detach(hear)
    assert not attachment.stream.problems
