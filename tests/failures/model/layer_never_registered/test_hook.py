"""Reports of modules that are not registered in the model that calls them."""

import gc
import weakref

import pytest
import torch
from torch import nn

from trueloop.failures.model.layer_never_registered import UnregisteredModuleCalled
from trueloop.failures.model.layer_never_registered.hook import HOOK
from trueloop.tracing.attach import Attachment
from trueloop.tracing.hooks.module_calls import ModuleCalls


@pytest.fixture
def watched():
    """An attachment of the hook and the one that it needs, and the events it reports."""
    events = []
    attachment = Attachment(lambda stream, program: [ModuleCalls(stream, program), HOOK(stream, program)])
    listener = events.append
    attachment.attach(listener)
    yield events
    attachment.detach(listener)
    assert not attachment.stream.problems


def unregistered(events):
    return [event for event in events if type(event) is UnregisteredModuleCalled]


class Hidden(nn.Module):
    """A model with one registered layer and one in a plain list."""

    def __init__(self, layer):
        super().__init__()
        self.layers = [layer]
        self.head = nn.Linear(2, 1)

    def forward(self, x):
        return self.head(self.layers[0](x))


def test_an_unregistered_module_is_reported_once_it_has_gradients(watched):
    inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    model = Hidden(inner)
    for _ in range(3):
        assert not unregistered(watched)
        output = model(torch.ones(1, 2))
    output.sum().backward()
    for _ in range(2):
        model(torch.ones(1, 2))
    (event,) = unregistered(watched)
    assert (event.model.kind, event.trainable, len(event.parameters)) == ("Hidden", True, 2)
    assert event.location.source_location.function == "Hidden.forward"


@pytest.mark.parametrize("inner", [nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2).eval(), nn.Tanh()])
def test_no_unregistered(watched, inner):
    model = Hidden(inner)
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
    assert not unregistered(watched)


def test_nothing_is_kept_alive(watched):
    model = Hidden(nn.Linear(2, 2))
    output = model(torch.ones(1, 2))
    output.sum().backward()
    alive = weakref.ref(model), weakref.ref(model.layers[0]), weakref.ref(output)
    watched.clear()
    del model, output
    gc.collect()
    assert [one() for one in alive] == [None, None, None]
