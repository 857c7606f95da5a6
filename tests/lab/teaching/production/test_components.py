"""Every component is explained, and its codes exist in the catalogue."""

from __future__ import annotations

import pytest

from trueloop.failures.load import catalogue
from trueloop.lab.teaching.production.components import COMPONENTS
from trueloop.lab.teaching.production.selection import NAMES


def test_every_component_is_explained_in_the_order_of_the_selection():
    assert tuple(COMPONENTS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_codes_of_a_component_are_in_the_catalogue(name):
    component = COMPONENTS[name]
    assert component.codes
    assert set(component.codes) <= set(catalogue())
    assert all(text.endswith(".") for text in (component.purpose, component.cost, component.without))
