"""Refs of objects, and of sets of them."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from trueloop.tracing.registry import MAX_SETS, Registry, enclosing_modules


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8))
        self.head = nn.Linear(8, 1)

    def found_by(self, part):
        return list(enclosing_modules(part))

    def named(self, registry):
        for part in (self.body, self.head):
            registry.name_parameters(part)


def test_modules_of_running_methods_are_found():
    net, other = Net(), Net()
    both = nn.ModuleList([net, other])
    assert net.found_by(net.head) == [net, both]
    assert other.found_by(net.head) == [net, both]
    assert net.found_by(both) == []


def test_parameters_have_their_names_in_the_largest():
    net, registry = Net(), Registry()
    assert registry.parameter_ref(net.head.weight).name == "Parameter 1x8"
    net.named(registry)
    assert [registry.ref(each).name for each in net.parameters()] == [name for name, _ in net.named_parameters()]
    system = nn.ModuleDict({"net": net})
    net.named(registry)
    assert registry.ref(net.head.bias).name == "net.head.bias"
    assert list(system) == ["net"]


def test_a_separate_parameter_has_no_enclosing_module():
    registry, layer = Registry(), nn.Linear(2, 1)
    registry.name_parameters(layer)
    assert registry.ref(layer.weight).name == "weight"
    assert registry.parameter_ref(nn.Parameter(torch.ones(2))).name == "Parameter 2"


def test_searching_for_names_does_not_number_modules():
    registry, first, second = Registry(), nn.Linear(2, 1), nn.Linear(2, 1)
    registry.name_parameters(first)
    assert [registry.ref(each).name for each in (second, first)] == ["Linear", "Linear 2"]


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
    subsets = {frozenset(map(registry.ref, each)) for size in range(6) for each in itertools.combinations(things, size)}
    assert len(subsets) == 2**6 - 1
    assert all(each < whole for each in subsets)
    assert (len(registry._refs), len(registry._sets), len(registry._sets_with)) == (6, 1, 6)


def test_a_set_stays_the_same_object_when_an_unrelated_tensor_is_freed():
    """Whenever garbage was collected, a detector that compared the sets began to count from 0 again."""
    registry, things = Registry(), [torch.zeros(1) for _ in range(3)]
    kept = registry.refs(things[:2])
    registry.refs([things[0], things.pop()])
    assert registry.refs(things) is kept
    assert [len(keys) for keys in registry._sets_with.values()] == [1, 1]


def test_a_ref_is_transferred_to_a_successor():
    registry, before, after = Registry(), torch.zeros(2), torch.ones(2)
    refs = registry.refs([before])
    (ref,) = refs
    registry.transfer(ref, id(before), after)
    assert registry.refs([after]) == refs
    assert registry.ref(before) is not ref
    key = id(after)
    del after
    third = torch.ones(2)
    registry.transfer(ref, key, third)
    assert registry.ref(third) is ref
