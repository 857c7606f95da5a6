"""Lines at which modules got their parameters."""

import torch
from torch import nn

from trueloop.tracing.attach import Attachment
from trueloop.tracing.hooks import all_hooks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()


def lines(attachment: Attachment, parameter: nn.Parameter) -> list[str]:
    """Return the functions of the recorded lines, innermost first."""
    return [each.code.co_qualname for each in attachment.stream.registry.ref(parameter).registered_at][:3]


def test_the_constructors_are_recorded_innermost_first():
    attachment = Attachment(all_hooks)
    attachment.attach(listener := lambda event: None)
    try:
        net = Net()
        recorded = lines(attachment, net.block.linear.weight)
        net.block.linear.weight = nn.Parameter(torch.zeros(3, 3))
        replaced = lines(attachment, net.block.linear.weight)
    finally:
        attachment.detach(listener)
    test = test_the_constructors_are_recorded_innermost_first.__qualname__
    assert recorded == ["Block.__init__", "Net.__init__", test]
    assert replaced[0] == test


def test_tensors_can_still_be_swapped():
    """``swap_tensors``, with which some conversions replace parameters, refuses tensors that are weakly referenced."""
    attachment = Attachment(all_hooks)
    attachment.attach(listener := lambda event: None)
    try:
        first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        expected = second.weight.detach().clone()
        torch.utils.swap_tensors(first.weight, second.weight)
    finally:
        attachment.detach(listener)
    assert torch.equal(first.weight, expected)
    assert nn.Module.register_parameter.__module__ == "torch.nn.modules.module"
