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
from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.analysis.queries.unregistered_modules import module_list_fix, unregistered_layers
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import Event, Ref, Refs, StepTaken
from trueloop.tracing.trackers.parameter_ownership import ParameterOwnership

MIN_UPDATES = 3  # a second optimizer may be created after the first update


@dataclass(slots=True, kw_only=True, eq=False)
class UnregisteredModuleCalled(Event):
    """A module in train mode ran within a model's forward and received gradients, but is not registered in the model.

    Emitted once, for the outermost of nested modules.
    """

    module: Ref
    model: Ref
    parameters: Refs
    trainable: bool
    created_at: CodePosition | None
    """The line that created the module; None = not traced."""


class Detector(BaseDetector):
    """Collects unregistered modules until it is certain that no optimizer has their parameters."""

    ownership: ParameterOwnership

    def __init__(self) -> None:
        self._unregistered: list[UnregisteredModuleCalled] = []
        self._updates = 0

    def on_unregistered_module_called(self, event: UnregisteredModuleCalled) -> None:
        """Record the module."""
        if event.trainable:
            self._unregistered.append(event)

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return one evidence for all unregistered modules after the third update."""
        self._updates += 1
        return self._check() if self._updates >= MIN_UPDATES and self._unregistered else None

    def _check(self) -> Evidence | None:
        outside = [call for call in self._unregistered if self.ownership.in_optimizers.isdisjoint(call.parameters)]
        self._unregistered = []
        if not outside:
            return None
        first = outside[0]
        parameters = sum(len(call.parameters) for call in outside)
        kinds = ", ".join(sorted({call.module.kind for call in outside}))
        number = len(outside)
        count, verb = (f"A module ({kinds})", "is") if number == 1 else (f"{number} modules ({kinds})", "are")
        return Evidence(
            message=f"{count} with {parameters} parameters ran inside {first.model.name} but {verb} "
            "not registered in it, and no optimizer has these parameters: they are not trained, moved or saved.",
            location=first.created_at or first.location,
            related=((first.location, "called here"),) if first.created_at and first.location else (),
            first_update=first.update,
        )

    def inconclusive(self) -> str:
        """Return the reason if there were too few updates."""
        return "" if self._updates >= MIN_UPDATES else f"fewer than {MIN_UPDATES} updates were traced"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls of layers that a module stores in a plain container."""
    for layers in unregistered_layers(source):
        yield Hit(
            message=f"The layers in the attribute `{layers.assignment.name}` are called but not registered in the "
            "module: they are not trained, moved or saved.",
            node=layers.assignment.node,
            related=((layers.call.node, "called here"),),
            fix=module_list_fix(source, layers),
        )


RULE = Rule(required_words=("torch", "forward(", "Module", "__init__"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
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
