"""Two parameters share the same memory, so each update of one also changes the other.

What you see
    Two weights that should differ are always equal, and training is less stable than it should be: they are updated
    twice at every step, with the gradients of both.

Why it happens
    ``nn.Parameter(tensor)`` does not copy the tensor. Two parameters that are made of the same tensor, or of views of
    one tensor that overlap, are two names of the same memory. The optimizer takes them for two parameters.

Fix
    Copy the tensor for each parameter. To share a weight on purpose, share the parameter itself.

        self.a = nn.Parameter(init.clone())
        self.b = nn.Parameter(init.clone())
        self.decoder.weight = self.encoder.weight  # one parameter, updated once

When this is fine
    - The parameters are views of one tensor that do not overlap, as a flat buffer has.
    - The same parameter is used in two modules: the optimizer has it once.
    - One of the two is not trained.

How it is detected
    At the first update of each optimizer the sanitizer compares the memory of its parameters, and reports two that
    overlap. A weight tied through ``.data`` is reported too, because it is updated twice, so this is a warning.

References
    torch.nn.Parameter, https://docs.pytorch.org/docs/stable/generated/torch.nn.parameter.Parameter.html
"""

import weakref
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.tracing.events import Ref, StepStarted


class Detector(BaseDetector):
    """Compares the memory of the parameters of each optimizer, once for each set of parameters."""

    def __init__(self) -> None:
        self._checked: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        """Optimizer -> hash of the set of its parameters that were compared."""

    def on_step_started(self, event: StepStarted) -> Evidence | None:
        """Return evidence of two trained parameters that overlap in memory."""
        trainable = event.parameters - event.frozen if event.frozen else event.parameters
        if self._checked.get(event.optimizer) == hash(trainable):
            return None
        self._checked[event.optimizer] = hash(trainable)
        pair = _overlapping({ref: each for ref, each in event.live_parameters.items() if ref in trainable})
        if pair is None:
            return None
        first, second = pair
        return Evidence(
            message=f"The parameters {first.name} and {second.name} share the same memory: each update of one also "
            f"changes the other, and {event.optimizer.name} updates the shared values twice.",
            location=event.location,
        )


def _overlapping(live: Mapping[Ref, Any]) -> tuple[Ref, Ref] | None:
    """Return two dense parameters whose memory overlaps; None if there are none."""
    spans = sorted(
        (str(each.device), each.data_ptr(), each.data_ptr() + each.numel() * each.element_size(), index, ref)
        for index, (ref, each) in enumerate(live.items())
        if each.numel() and not each.is_meta and str(each.layout) == "torch.strided" and each.is_contiguous()
    )
    for (device, _, end, _, first), (other_device, start, _, _, second) in pairwise(spans):
        if device == other_device and 0 < start < end:
            return first, second
    return None


BAD = """
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        begin = torch.randn(8)
        self.gain = nn.Parameter(begin)
        self.shift = nn.Parameter(begin)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(torch.tanh(x * self.gain) + self.shift)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="OPT008",
    title="Two parameters share the same memory",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"self.shift = nn.Parameter(begin)": "self.shift = nn.Parameter(begin.clone())"}),
    fix="Give each parameter its own memory: `nn.Parameter(tensor.clone())`; to share a weight, share the parameter.",
    detector=Detector,
)
