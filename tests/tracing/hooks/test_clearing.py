"""Clearing of gradients: by whom, of what, and whether it was used."""

import pytest
import torch
from torch import nn

from trueloop.tracing.events import GradientsCleared


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("by", ["optimizer", "model"])
def test_gradients_that_no_step_has_used(everything, by, to_none):
    _, told = everything
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clear = {"optimizer": optimizer, "model": model}[by].zero_grad
    clear(set_to_none=to_none)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    clear(set_to_none=to_none)
    model(torch.ones(1, 2)).sum().backward()
    clear(set_to_none=to_none)
    (event,) = told(GradientsCleared)
    assert (len(event.unused), event.location.source_location.path) == (2, __file__)
    assert all((p.grad is None) is to_none for p in model.parameters())


def test_a_part_of_the_model(everything):
    attachment, told = everything
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    model[1].zero_grad()
    (event,) = told(GradientsCleared)
    assert event.unused == {attachment.stream.registry.ref(model[1].weight)}


def test_a_custom_zero_grad_is_reported_once(everything):
    _, told = everything

    class Careful(nn.Linear):
        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none)
            for child in self.children():
                child.zero_grad(set_to_none)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Careful(2, 2), nn.Linear(2, 2)])

        def zero_grad(self, set_to_none=True):
            super().zero_grad(set_to_none)
            for part in self.parts:
                part.zero_grad(set_to_none)

    for model in (Careful(2, 2), Both()):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            sum(parameter.sum() for parameter in model.parameters()).backward()
            optimizer.step()
        sum(parameter.sum() for parameter in model.parameters()).backward()
        model.zero_grad()
    assert [len(event.unused) for event in told(GradientsCleared)] == [2, 4]
