"""The module that a running ``forward`` belongs to."""

from __future__ import annotations

import functools
import gc
import sys
import weakref

import torch
from torch import nn

from trueloop.tracing.frame_modules import codes_of, owner_of, runs_method_of

FRAMES: list = []


class Base(nn.Module):
    def forward(self, x):
        self.found = owner_of(sys._getframe())
        return x

    def step(self, x):
        def inner():
            FRAMES.append(runs_method_of(self, sys._getframe()))

        inner()


class Child(Base):
    def forward(self, me):
        self.own = owner_of(sys._getframe())
        return super().forward(me)


def around(function):
    @functools.wraps(function)
    def forward(*args):
        return function(*args)

    return forward


class Decorated(nn.Module):
    @around
    def forward(self, x):
        self.found = owner_of(sys._getframe())
        return x


class NoModule:
    def forward(self, x):
        return owner_of(sys._getframe())


def forward(model):
    """A function named ``forward`` outside of a class."""
    return owner_of(sys._getframe())


def test_the_module_whose_forward_it_is():
    for model in (Base(), Decorated()):
        model.forward(1)
        assert model.__dict__.get("_modules").pop("found") is model


def test_an_inherited_attribute():
    model = Child()
    model.forward(1)
    assert model._modules.pop("found") is model
    assert model._modules.pop("own") is model


def test_other_variables_of_that_name():
    assert NoModule().forward(1) is None
    assert forward(nn.Linear(1, 1)) is None
    assert owner_of(sys._getframe()) is None


def test_nothing_is_kept():
    class Wide(nn.Module):
        def forward(self):
            x = torch.ones(2)
            known = weakref.ref(x)
            assert owner_of(sys._getframe()) is self
            del x
            gc.collect()
            return known() is None

    assert Wide().forward()


def test_methods_of_a_module_and_functions_within():
    FRAMES.clear()
    Child().step(1)
    assert FRAMES == [True]
    assert not runs_method_of(Child(), sys._getframe())


def test_the_code_of_wrapped_functions():
    def plain():
        """Nothing."""

    wrapped = around(plain)
    assert list(codes_of(wrapped)) == [wrapped.__code__, plain.__code__]
    assert not list(codes_of(len))
    plain.__wrapped__ = plain
    assert 1 <= len(list(codes_of(plain))) <= 8
