"""The first module in which two forward passes differ is found."""

import torch
from torch import nn

from trueloop.verification.divergence import first_divergence, trace_modules
from trueloop.verification.model_call import ModelCall


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(2, 2)

    def forward(self, x):
        return self.lift(x + 1)


def test_the_first_place_is_found():
    model = nn.Sequential(nn.Flatten(), Inner(), nn.Dropout(0.5))
    call = ModelCall(args=(torch.ones(4, 2),), kwargs={})
    assert (
        first_divergence(trace_modules(model, call, 0), trace_modules(model, call, 1), torch.equal) == "in 2 (Dropout)"
    )
    assert first_divergence(trace_modules(model, call, 0), trace_modules(model, call, 0), torch.equal) == ""
    other = ModelCall(args=(torch.zeros(4, 2),), kwargs={})

    def but_the_input(a, b):
        return a.equal(b) or bool((a == 0).all() or (b == 0).all())

    place = first_divergence(trace_modules(model, call, 0), trace_modules(model, other, 0), but_the_input)
    assert place == "in the forward of Inner, before 1.lift (Linear)"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
