"""Backward runs on a tensor that was made differentiable by decree and has nothing behind it.

What you see
    The loss is printed, backward runs, the optimizer steps, and no weight ever changes.

Why it happens
    ``torch.tensor(value, requires_grad=True)`` and ``loss.requires_grad_()`` make a new leaf. Its backward fills its
    own ``.grad`` and is done. Without that call torch would have said that the loss has no graph.

Fix
    Keep the loss a tensor from the model to backward: no ``.item()``, ``.detach()``, ``.data``, ``torch.tensor(loss)``
    or NumPy on the way, no ``torch.no_grad()`` around the forward; then leave ``requires_grad_()`` out.

When this is fine
    ``parameter.backward(gradient)``, which puts a gradient into a parameter by hand, and a leaf that an optimizer holds
    (an image that is optimised) are not told. Certain when the root of a backward without a given gradient is a leaf
    that is no parameter and belongs to no optimizer: nothing else in the program can get a gradient from it. The text
    alone tells it where a model's output went into that leaf, and every way back to the model is cut.

References
    PyTorch documentation "Autograd mechanics", https://docs.pytorch.org/docs/stable/notes/autograd.html
    torch.Tensor.requires_grad_, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.requires_grad_.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, ClassVar

from trueloop.analysis.abstract_value import LEAF, NO_GRAPH, AbstractValue, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardStarted, Event, OptimizerCreated


class Detector(failure.Detector):
    """Looks at the root of every backward, once there is an optimizer that would need its gradients."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (OptimizerCreated, BackwardStarted)

    def __init__(self) -> None:
        self._trains = False
        self._seen = 0

    def observe(self, event: OptimizerCreated | BackwardStarted) -> Evidence | None:
        """Return evidence for a backward from a leaf."""
        if isinstance(event, OptimizerCreated):
            self._trains = True
            return None
        self._seen += 1
        if not event.leaf or not self._trains:
            return None
        return Evidence(
            message="This backward starts from a tensor that was made with requires_grad on and has no graph: it leads "
            "to no weight.",
            location=event.place,
        )

    def inconclusive(self) -> str:
        """Return a reason where no backward was seen."""
        return "" if self._seen else "no backward was seen"


def find(source: Source) -> Iterator[Hit]:
    """Yield each backward from what a model computed, that was cut off from it and then told to want gradients."""
    held = [each.subject for each in source.acts(OpKind.MADE) if each.subject.kind is Kind.OPTIMIZER]
    for backward in source.acts(OpKind.BACKWARD):
        root, given = backward.subject, {"0", "gradient", "grad_tensors"} & backward.options.keys()
        if root.kind is Kind.SEQUENCE and len(root.of) == 1:
            root, given = root.of[0], given - {"0"}
        if isinstance(backward.node, ast.Call) and source.name(backward.node.func) == "torch.autograd.backward":
            given -= {"0"}  # the root itself
        wants = None if given or root.either else _wants(source, root, backward)
        optimised = wants is not None and any(root is each for one in held for each in one.lineage())
        if wants is not None and not optimised and any(each.kind is Kind.MODEL for each in root.lineage(2000)):
            yield Hit(
                message="This backward starts from a tensor that was cut off from the model and told to want gradients "
                "by itself: it leads to no weight.",
                node=backward.node,
                related=((wants, "told to want gradients here"),) if wants is not backward.node else (),
                fix=_kept_whole(source, root),
            )


def _wants(source: Source, root: AbstractValue, backward: Op) -> Any:
    """Return where a root that leads nowhere was told to want gradients; None where it leads somewhere, or was not."""
    if LEAF in root.facts:
        return root.node
    if root.name == "requires_grad_" and root.of:
        root = root.of[0]
    told = [each for each in source.run_of(backward) if each.act is OpKind.FROZEN and each.subject is root]
    earlier = [each for each in told if each.value is True and each.index < backward.index]
    return earlier[-1].node if earlier and _cut(root) else None


def _cut(thing: AbstractValue, depth: int = 20) -> bool:
    """Return True where no way through the graph leads from a tensor to anything that is trained."""
    if NO_GRAPH in thing.facts or thing.kind in (Kind.CONSTANT, Kind.NAME):
        return True
    if thing.kind is Kind.UNKNOWN:
        return not thing.either and isinstance(thing.node, ast.arg | ast.For | ast.Name)  # data, by all means
    if thing.kind is not Kind.TENSOR or LEAF in thing.facts or thing.either or not thing.of or not depth:
        return False
    return all(_cut(each, depth - 1) for each in thing.of)


def _kept_whole(source: Source, root: AbstractValue) -> Fix | None:
    """Return the fix, where a leaf was made of a loss that still has its graph: the loss itself."""
    call = root.node
    if LEAF not in root.facts or not isinstance(call, ast.Call) or not call.args or not root.of:
        return None
    if not any(each.kind is Kind.MODEL for each in root.of[0].graph()):
        return None
    edit = source.text.replace(call, source.text.of(call.args[0]))
    return Fix((edit,), safe=False, words="Keep the loss itself, with its graph")


RULE = Rule(words=(".backward(", "requires_grad"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Break the teaching loop this way."""
    loop.require(loop.settings["precision"] != "float16", "A GradScaler scales the loss.", precision="float32")
    loop.pieces[Piece.BACKWARD] = "loss = loss.detach().requires_grad_()\n" + loop.pieces[Piece.BACKWARD]


FAILURE = Failure(
    code="GRD009",
    title="The loss has no graph behind it",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    with torch.no_grad():
        prediction = model(x)
    loss = nn.functional.mse_loss(prediction, y)
    loss.requires_grad_(True)
    loss.backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    prediction = model(x)
    loss = nn.functional.mse_loss(prediction, y)
    loss.backward()
    optimizer.step()
""",
    fix="Compute the loss from the model's output without leaving the graph, and drop requires_grad_().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
