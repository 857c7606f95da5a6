"""The method ``forward`` is called instead of the model, so that hooks and wrappers are left out.

Symptom
    Forward hooks never run: activations are not recorded, a weight that a hook prunes or normalises keeps its old
    value. Behind ``DistributedDataParallel`` a call of ``model.module.forward`` trains each process by itself.

Why nothing raises
    ``forward`` is a method like any other. What runs the hooks is ``__call__``, around it.

Look-alikes
    ``super().forward(x)``, a method of the model that calls its own ``forward`` (Lightning's ``training_step``), a
    module that calls the ``forward`` of one within it, and calls by libraries are not told; nor is a module without
    hooks of its own, for which there is no difference today. Certain where a line of the program called the
    ``forward`` of a module with hooks, a backward reached its parameters, this twice, and the module was not called
    as it should be before. Who leaves hooks out on purpose takes them off, or calls the model now and then. Not
    judged: a ``forward`` within which no module with parameters runs, as that of ``nn.Linear``, or which a library
    has decorated; and a wrapper that is left out, where it has put no hooks on the module.

Fix
    Call the module: ``model(x)``.

References
    torch.nn.Module.forward and its note, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    DistributedDataParallel,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.ground.events import BackwardEnded, Event, ForwardBypassed, Ref
from trueloop.ground.failure import Failure, Severity
from trueloop.ground.findings import Evidence

TIMES = 2  # once may be a trial


class Detector:
    """Waits until what was computed past a module's hooks has trained it."""

    moments: ClassVar[tuple[type[Event], ...]] = (ForwardBypassed, BackwardEnded)

    def __init__(self) -> None:
        self._waiting: dict[Ref, ForwardBypassed] = {}
        self._times: dict[Ref, int] = {}
        self._backwards = 0

    def observe(self, event: ForwardBypassed | BackwardEnded) -> list[Evidence] | None:
        """Return evidence when a backward has reached the module again."""
        if isinstance(event, ForwardBypassed):
            if event.called:
                self._waiting.pop(event.model, None)
            else:
                self._waiting[event.model] = event
            return None
        self._backwards += 1
        if not self._waiting:
            return None
        reached = [each for each in self._waiting.values() if each.parameters & event.received]
        for each in reached:
            del self._waiting[each.model]
            self._times[each.model] = self._times.get(each.model, 0) + 1
        return [self._tell(each) for each in reached if self._times[each.model] >= TIMES]

    def _tell(self, event: ForwardBypassed) -> Evidence:
        hooks = " and a ".join(event.hooks)
        return Evidence(
            message=f"{event.model.name} is trained through its method forward, past a {hooks} that it has.",
            place=event.place,
            about=event.model,
        )

    def abstains(self) -> str:
        """Return a reason where nothing was trained."""
        return "" if self._backwards else "no backward was watched"


FAILURE = Failure(
    code="MDL002",
    title="The forward method is called instead of the model",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
seen = []
model.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().mean()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model.forward(x), y)
    loss.backward()
    optimizer.step()
print(len(seen))
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
seen = []
model.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().mean()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print(len(seen))
""",
    fix="Call model(x), not model.forward(x).",
    detector=Detector,
)
