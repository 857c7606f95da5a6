"""Every component is explained, and leads to failures that exist."""

from __future__ import annotations

import pytest

from trueloop.failures.load import catalogue
from trueloop.lab.teaching.production.components import COMPONENTS
from trueloop.lab.teaching.production.selection import NAMES


def test_each_component_is_explained_once_in_the_order_of_the_loop():
    assert tuple(COMPONENTS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_its_codes_are_in_the_catalogue(name):
    component = COMPONENTS[name]
    assert component.codes
    assert set(component.codes) <= set(catalogue())
    assert all(text.endswith(".") for text in (component.why, component.cost, component.without))
