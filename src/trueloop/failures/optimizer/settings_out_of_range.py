"""Settings of the optimizer are exchanged or too large, so its averages do not do what they are for.

What you see
    The loss jumps, or it hardly moves, with learning rates that work for others. Momentum of 1 makes it oscillate with
    a growing amplitude.

Why it happens
    PyTorch checks only that the settings are valid numbers. With ``betas=(0.999, 0.9)`` Adam averages gradients over
    1,000 updates, and their squares over 10: the direction is old, and the size of the steps follows single batches. A
    momentum of 1 or more never forgets a gradient. An ``eps`` above 1 is larger than the root of most squared gradients
    and takes their place.

Fix
    Adam's betas are the one for gradients, then the one for squares:

        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.999))

When this is fine
    - Both betas are equal, or the first is smaller, such as ``(0.5, 0.9)`` for a GAN.
    - ``eps`` is 1, as in some recipes for Inception networks.

How it is detected
    In a run, before the first step of each optimizer: the first of two betas is larger than the second, the momentum is
    1 or more, or ``eps`` is larger than 1. The linter finds such numbers in the call of an optimizer.

References
    Kingma and Ba, "Adam: a method for stochastic optimization", https://arxiv.org/abs/1412.6980
    torch.optim.Adam, https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import OptimizerCreated, Ref, StepStarted

MAX_OPTIMIZERS: Final = 16  # optimizers that have not stepped yet, whose lines are remembered


class Detector(BaseDetector):
    """Reads the settings of each optimizer before its first step."""

    def __init__(self) -> None:
        self._created_at: dict[Ref, CodePosition | None] = {}

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Remember the line that creates an optimizer, until its first step."""
        self._created_at[event.optimizer] = event.location
        if len(self._created_at) > MAX_OPTIMIZERS:
            del self._created_at[next(iter(self._created_at))]

    def on_step_started(self, event: StepStarted) -> Evidence | None:
        """Return evidence if a setting of a parameter group is out of range."""
        if event.optimizer not in self._created_at:
            return None  # this was not the first step
        created_at = self._created_at.pop(event.optimizer)
        for group in event.live_optimizer.param_groups:
            problem = _problem(event.optimizer.kind, group)
            if problem:
                location = created_at or event.location
                return Evidence(message=f"{event.optimizer.kind} has {problem}.", location=location)
        return None


def _problem(optimizer: str, settings: Mapping[str, Any]) -> str:
    """Return what is wrong with the settings of an optimizer; "" if nothing is."""
    betas, momentum, eps = settings.get("betas"), settings.get("momentum"), settings.get("eps")
    if isinstance(betas, tuple | list) and len(cast("tuple[Any, ...]", betas)) == 2:
        first, second = cast("tuple[Any, Any]", betas)
        is_novograd = (
            optimizer.lower() == "novograd"
        )  # which averages squares for each layer, and so for a shorter time
        if isinstance(first, float) and isinstance(second, float) and first > second and not is_novograd:
            return (
                f"betas=({first:g}, {second:g}): it averages gradients for longer than their squares, as if the two "
                "were exchanged"
            )
    if isinstance(momentum, int | float) and momentum >= 1:
        return f"momentum={momentum:g}: with 1 or more no gradient is ever forgotten, and the steps grow"
    if isinstance(eps, int | float) and eps > 1:
        return f"eps={eps:g}, which outweighs the gradients: usual values are 1e-8 to 1e-3"
    return ""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each optimizer that is created with such settings."""
    for created in source.ops(OpKind.CREATE):
        if created.subject.kind is not ValueKind.OPTIMIZER or not isinstance(created.node, ast.Call):
            continue
        values = {each.arg: each.value for each in created.node.keywords if each.arg}
        name = created.subject.name.rpartition(".")[2] or "The optimizer"
        problem = _problem(name, {key: _number(value, created.arguments.get(key)) for key, value in values.items()})
        if problem:
            betas = values.get("betas") if problem.startswith("betas") else None
            yield Hit(message=f"{name} has {problem}.", node=created.node, fix=_exchange(source, betas))


def _number(node: ast.expr, value: AbstractValue | None) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return value.constant() if value is not None and not value.union else None


def _exchange(source: SourceFile, betas: ast.expr | None) -> Fix | None:
    """Return the fix that exchanges two numbers; None if they are not written in the call."""
    if not isinstance(betas, ast.Tuple | ast.List):
        return None
    first, second = betas.elts
    edits: tuple[Edit, ...] = (
        source.text.replace(first, source.text.segment(second)),
        source.text.replace(second, source.text.segment(first)),
    )
    return Fix(edits, safe=False, description="Exchange the betas")


RULE = Rule(required_words=("optim", "betas|momentum|eps"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(128, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.999, 0.9))
for epoch in range(5):
    for rows in torch.randperm(128).split(32):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="OPT015",
    title="Settings of the optimizer are exchanged or out of range",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(0.999, 0.9)": "(0.9, 0.999)"}),
    fix="Write the beta for gradients first, keep momentum below 1, and eps at 1 or less.",
    rule=RULE,
    detector=Detector,
)
