"""What is called by itself is known by its place in a larger module that the program has in its hands."""

from __future__ import annotations

import torch
from torch import nn

from trueloop.tracing.enclosing_modules import enclosing_modules
from trueloop.tracing.registry import Registry


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
