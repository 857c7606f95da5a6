"""`trueloop.autograd`: reached by one name, at first use."""

from __future__ import annotations

import pytest

import trueloop


@pytest.mark.parametrize("name", trueloop.autograd.__all__)
def test_what_is_offered_is_there_and_documented(name: str):
    assert getattr(trueloop.autograd, name).__doc__


def test_the_names_are_in_order():
    assert list(trueloop.autograd.__all__) == sorted(trueloop.autograd.__all__)
