"""Refs of objects, and of sets of them: what is remembered, and for how long."""

from __future__ import annotations

import itertools

import torch

from trueloop.engines.watch.registry import Registry


def sizes(registry: Registry) -> tuple[int, int, int]:
    return len(registry._refs), len(registry._sets), len(registry._in_sets)


def test_the_same_objects_are_the_same_set_until_one_is_gone():
    registry, things = Registry(), [torch.zeros(1) for _ in range(3)]
    first = registry.many(things)
    assert registry.many(things) is first
    assert first == {registry.of(thing) for thing in things}
    assert sizes(registry) == (3, 1, 3)
    things.pop()
    assert sizes(registry) == (2, 0, 0)
    assert registry.many(things) < first


def test_of_sets_that_change_all_the_time_nothing_is_remembered():
    """Units that die and come to life, experts that are chosen: 2 ** n sets of n objects."""
    registry, things = Registry(), [torch.zeros(1) for _ in range(6)]
    whole = registry.many(things)
    before = sizes(registry)
    subsets = {registry.some(each) for size in range(6) for each in itertools.combinations(things, size)}
    assert len(subsets) == 2**6 - 1
    assert all(each < whole for each in subsets)
    assert sizes(registry) == before
