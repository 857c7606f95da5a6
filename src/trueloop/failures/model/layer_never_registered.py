"""A layer runs in the forward pass but is not registered as a submodule of the model.

What you see
    The layer keeps its initial weights, is missing from ``state_dict()``, and is not moved by ``.to(device)``. The loss
    still falls, because the other layers adapt to the random layer.

Why it happens
    ``nn.Module`` registers modules that are assigned directly to its attributes. It does not search lists, dictionaries
    or closures for modules, and calling an unregistered module raises no error.

Fix
    Use ``nn.ModuleList``, ``nn.ModuleDict`` or ``nn.Sequential``:

        self.layers = [nn.Linear(8, 8) for _ in range(3)]  # wrong
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))  # right

    Freeze a network that must stay outside the model with ``requires_grad_(False)``.

When this is fine
    - The module is frozen and is not registered on purpose, such as a teacher or the network of a perceptual loss.
    - The module is random on purpose and called without gradients, as in random network distillation.
    - The module is in eval mode.
    - The parameters of the module are passed to an optimizer in another way.

How it is detected
    In a run, the sanitizer reports a module in train mode that was called inside a model, is not one of its submodules,
    got gradients, and is in no optimizer after three updates. The linter reports layers that a module creates, stores
    in a plain list, dictionary or tuple, and only calls.

References
    torch.nn.ModuleList, https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html
"""

import re
import weakref
from collections.abc import Iterator
from dataclasses import replace

from trueloop.analysis.queries.unregistered_modules import module_list_fix, unregistered_layers
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import OptimizerCreated, Ref, Refs, StepTaken, UnregisteredModuleCalled
from trueloop.tracing.weak_id_dict import WeakIdDict

MIN_UPDATES = 3  # a second optimizer may be created after the first update


class Detector(BaseDetector):
    """Collects unregistered modules until it is certain that no optimizer has their parameters."""

    subscribes_to = (OptimizerCreated, UnregisteredModuleCalled, StepTaken)

    def __init__(self) -> None:
        self._unregistered: list[UnregisteredModuleCalled] = []
        self._optimized: weakref.WeakSet[Ref] = weakref.WeakSet()
        self._parameters = WeakIdDict[Ref, Refs]()
        self._updates = 0

    def observe(self, event: OptimizerCreated | UnregisteredModuleCalled | StepTaken) -> Evidence | None:
        """Return one evidence for all unregistered modules after the third update."""
        if isinstance(event, StepTaken):
            self._record_parameters(event)
            self._updates += 1
            return self._check() if self._updates >= MIN_UPDATES and self._unregistered else None
        if isinstance(event, OptimizerCreated):
            self._record_parameters(event)
        elif event.trainable:
            self._unregistered.append(replace(event, live_module=None))
        return None

    def _record_parameters(self, event: OptimizerCreated | StepTaken) -> None:
        if self._parameters.get(event.optimizer) is not event.parameters:
            self._parameters.put(event.optimizer, event.parameters)
            self._optimized.update(event.parameters)

    def _check(self) -> Evidence | None:
        outside = [call for call in self._unregistered if self._optimized.isdisjoint(call.parameters)]
        self._unregistered = []
        if not outside:
            return None
        first = outside[0]
        parameters = sum(len(call.parameters) for call in outside)
        kinds = ", ".join(sorted({call.module.kind for call in outside}))
        one = len(outside) == 1
        count = f"A module ({kinds})" if one else f"{len(outside)} modules ({kinds})"
        return Evidence(
            message=f"{count} with {parameters} parameters ran inside {first.model.name} but {'is' if one else 'are'} "
            "not registered in it, and no optimizer has these parameters: they are not trained, moved or saved.",
            location=first.location,
            first_update=first.update,
        )

    def inconclusive(self) -> str:
        """Return the reason if there were too few updates."""
        return "" if self._updates >= MIN_UPDATES else f"fewer than {MIN_UPDATES} updates were traced"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls of layers that a module stores in a plain container."""
    for found in unregistered_layers(source):
        yield Hit(
            message=f"The layers in the attribute `{found.assignment.name}` are called but not registered in the "
            "module: they are not trained, moved or saved.",
            node=found.call.node,
            related=((found.assignment.node, "a plain container, not a module"),),
            fix=module_list_fix(source, found),
        )


RULE = Rule(required_words=("torch", "forward(", "Module", "__init__"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(bool(loop.settings["hidden"]), "There is no hidden layer.", hidden=(16,))
    model = loop.pieces[Piece.MODEL]
    loop.pieces[Piece.MODEL] = re.sub(r"self.layers = nn.ModuleList\((.*)\)", r"self.layers = \1", model)


SCRIPT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = {layers}
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="MDL001",
    title="A layer is never registered in the model",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{layers}", "[nn.Linear(8, 8) for _ in range(3)]"),
    good=SCRIPT.replace("{layers}", "nn.ModuleList(nn.Linear(8, 8) for _ in range(3))"),
    fix="Store layers in nn.ModuleList, nn.ModuleDict or nn.Sequential.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
