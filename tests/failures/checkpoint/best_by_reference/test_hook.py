"""State dictionaries are recognised when they are loaded or saved."""

import copy
import gc
import io
import weakref

import pytest
import torch
from torch import nn

from trueloop.failures.checkpoint.best_by_reference import StateDictUsed
from trueloop.failures.checkpoint.best_by_reference.hook import HOOK
from trueloop.tracing.attach import Attachment
from trueloop.tracing.hooks.states import States


@pytest.fixture
def watched():
    """An attachment of the hook and of that of states, and the events they report."""
    events, before = [], (nn.Module.state_dict, nn.Module.load_state_dict, torch.save)
    attachment = Attachment(lambda stream, program: [States(stream, program), HOOK(stream, program)])
    attachment.attach(events.append)
    yield attachment, events
    attachment.detach(events.append)
    assert not attachment.stream.problems
    assert before == (nn.Module.state_dict, nn.Module.load_state_dict, torch.save)


def of(events, kind):
    return [event for event in events if type(event) is kind]


def change_weights(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)


@pytest.mark.parametrize(
    ("keep", "aliased"),
    [
        (lambda state: state, True),
        (dict, True),
        (lambda state: {"deep": [state]}, True),
        (copy.deepcopy, None),
        (lambda state: {k: v.clone() for k, v in state.items()}, None),
    ],
)
def test_aliasing(watched, keep, aliased):
    _, events = watched
    model = nn.Linear(3, 2)
    state = keep(model.state_dict())
    torch.save(state, io.BytesIO())
    change_weights(model)
    torch.save(state, io.BytesIO())
    used = [(event.aliased, event.weights_changed) for event in of(events, StateDictUsed)]
    assert used == ([] if aliased is None else [(True, False), (True, True)])


def test_reassigned_weights_are_not_aliased(watched):
    _, events = watched
    model = nn.Linear(3, 2)
    state = model.state_dict()
    for parameter in model.parameters():
        parameter.data = parameter.data + 1
    model.load_state_dict(state)
    assert [event.aliased for event in of(events, StateDictUsed)] == [False]


def test_a_batchnorm_that_only_saw_data_has_not_changed(watched):
    _, events = watched
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    state = model.state_dict()
    model(torch.randn(4, 3))
    model.load_state_dict(state)
    assert [event.weights_changed for event in of(events, StateDictUsed)] == [False]


def test_one_dictionary_for_a_model_with_children(watched):
    _, events = watched
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    model.load_state_dict(model.state_dict())
    (event,) = of(events, StateDictUsed)
    assert (event.how, event.into_itself, event.was_trained, event.weights_changed) == ("loaded", True, False, False)
    assert event.created_at.source_location.path == event.location.source_location.path == __file__


def test_nothing_is_kept_alive(watched):
    attachment, events = watched
    model = nn.Linear(3, 2)
    state = model.state_dict()
    dead = weakref.ref(model), weakref.ref(state["weight"])
    del model, state
    events.clear()
    gc.collect()
    assert [ref() for ref in dead] == [None, None]
    assert not attachment._hooks[1]._created
