"""Which optimizers hold a parameter, and which parameters train without one, according to the events."""

from dataclasses import fields

import pytest
from torch import nn

from trueloop.core.findings import CodePosition
from trueloop.tracing.events import (
    BackwardEnded,
    ModelCalled,
    OptimizerCreated,
    Ref,
    StepTaken,
    handlers,
)
from trueloop.tracing.trackers.parameter_ownership import ParameterOwnership

ADAM, SGD = Ref("Adam", "Adam"), Ref("SGD", "SGD")
LINE = CodePosition(compile("1", "train.py", "exec"), 0)


class Program:
    """A model of two layers, whose events are sent to a tracker."""

    def __init__(self):
        self.tracker = ParameterOwnership()
        self.model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
        self.ref, self.first, self.second = Ref("Sequential", "model"), Ref("P", "0.weight"), Ref("P", "1.weight")
        self.update = 0

    def send(self, event_type, **values):
        empty = {field.name: None for field in fields(event_type)}
        event = event_type(**empty | {"update": self.update} | values)
        getattr(self.tracker, handlers(ParameterOwnership)[event_type])(event)
        return event

    def build(self, optimizer, *parameters, location=None):
        self.send(OptimizerCreated, optimizer=optimizer, parameters=frozenset(parameters), location=location)

    def call(self):
        both = frozenset({self.first, self.second})
        self.send(ModelCalled, model=self.ref, live_module=self.model, parameters=both)

    def train(self, optimizer, *parameters, received):
        self.call()
        self.send(BackwardEnded, reached_parameters=frozenset(received))
        event = self.send(StepTaken, optimizer=optimizer, parameters=frozenset(parameters))
        self.update += 1
        return event


@pytest.fixture
def program():
    return Program()


def test_a_parameter_that_no_optimizer_contains(program):
    program.build(ADAM, program.first, location=LINE)
    program.train(ADAM, program.first, received=[program.first, program.second])
    assert program.tracker.without_optimizer == {program.second}
    assert program.tracker.built_at(ADAM) is LINE
    program.build(SGD, program.second)
    program.train(SGD, program.second, received=[program.first, program.second])
    assert not program.tracker.without_optimizer


def test_changes_of_a_parameter_without_an_optimizer(program):
    both = frozenset({program.first, program.second})
    for _ in range(2):
        program.train(ADAM, program.first, received=both)
    program.call()
    (model,) = program.tracker.models.values()
    assert not model.changed
    nn.init.ones_(program.model[1].weight)
    program.call()
    assert model.changed == {program.second.name}


def test_a_parameter_that_was_frozen_when_the_optimizer_was_new(program):
    program.build(SGD, program.first, program.second)
    program.train(SGD, program.first, program.second, received=[program.first, program.second])
    program.model[0].requires_grad_(False)
    program.build(ADAM, program.second)
    program.train(ADAM, program.second, received=[program.second])
    assert not program.tracker.unfrozen
    program.model[0].requires_grad_(True)
    program.train(ADAM, program.second, received=[program.first, program.second])
    assert program.tracker.unfrozen == {program.first}
    program.train(SGD, program.first, program.second, received=[program.first, program.second])
    program.train(ADAM, program.second, received=[program.first, program.second])
    assert not program.tracker.unfrozen, "the earlier optimizer still steps"


def test_an_optimizer_that_has_not_stepped_may_still_do_so(program):
    program.model[0].requires_grad_(False)
    program.build(SGD, program.first)
    program.build(ADAM, program.second)
    program.train(ADAM, program.second, received=[program.second])
    program.train(ADAM, program.second, received=[program.first, program.second])
    assert not program.tracker.unfrozen


def test_gradients_since_the_latest_step_of_any_optimizer(program):
    program.train(ADAM, program.first, received=[program.first])
    program.train(SGD, program.second, received=[program.second])
    program.train(ADAM, program.first, received=[program.first])
    assert program.tracker.received == {program.first}


def test_parameters_of_the_models_that_were_called_lately(program):
    program.call()
    program.update = 5
    assert program.tracker.in_models() == {program.first, program.second}
    assert not program.tracker.in_models(since=1)
    program.call()
    assert program.tracker.in_models(since=1) == {program.first, program.second}
