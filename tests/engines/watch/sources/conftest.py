"""An attachment of all sources, and the events they told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from trueloop.engines.watch.attach import Attachment
from trueloop.engines.watch.sources import all_sources
from trueloop.ground.events import Event


@pytest.fixture
def everything() -> Iterator[tuple[Attachment, Callable[[type[Event]], list]]]:
    """The attachment, and a function that gives the events of one kind."""
    events: list[Event] = []
    attachment = Attachment(all_sources)
    hear = events.append
    attachment.attach(hear)
    yield attachment, lambda kind: [event for event in events if type(event) is kind]
    attachment.detach(hear)
    assert not attachment.stream.problems
