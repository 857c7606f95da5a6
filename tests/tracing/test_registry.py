"""Refs of objects, and of sets of them."""

from __future__ import annotations

import itertools

import torch

from trueloop.tracing.registry import MAX_SETS, Registry


def test_the_same_objects_have_the_same_refs_however_many_sets_came_between():
    registry = Registry()
    things = [torch.zeros(1) for _ in range(40)]
    first = registry.refs(things[:3])
    assert registry.refs(things[:3]) is first  # made once
    for k in range(3, 40):
        for other in range(k):
            registry.refs([things[k], things[other]])
    assert 0 < len(registry._sets) <= MAX_SETS
    assert registry.refs(things[:3]) == first


def test_a_new_object_at_a_reused_address_is_another():
    registry = Registry()
    thing = torch.zeros(1)
    old = registry.refs([thing])
    del thing
    assert not registry._sets
    assert registry.refs([torch.zeros(1)]) != old


def test_sets_that_hardly_repeat_are_not_cached():
    """Units that die and come to life, experts that are chosen: 2 ** n sets of n objects."""
    registry, things = Registry(), [torch.zeros(1) for _ in range(6)]
    whole = registry.refs(things)
    subsets = {registry.uncached_refs(each) for size in range(6) for each in itertools.combinations(things, size)}
    assert len(subsets) == 2**6 - 1
    assert all(each < whole for each in subsets)
    assert (len(registry._refs), len(registry._sets), len(registry._in_sets)) == (6, 1, 6)
