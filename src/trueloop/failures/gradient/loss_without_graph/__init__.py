"""The loss is cut off from the model and then marked with ``requires_grad``, so no weight gets a gradient.

What you see
    ``backward()`` and the optimizer's step run without an error, but no weight ever changes.

Why it happens
    ``torch.tensor(loss)``, ``.item()`` and ``torch.no_grad()`` cut the loss off from the operations that computed it.
    ``backward()`` would then raise an error. ``requires_grad=True`` or ``loss.requires_grad_()`` hides this error:
    ``backward()`` runs, but computes a gradient only for the loss itself.

Fix
    Remove ``requires_grad_()``, and do not use ``.item()``, ``.detach()``, ``.data``, NumPy, ``torch.tensor()`` or
    ``torch.no_grad()`` between the model and ``backward()``.

        loss = torch.tensor(criterion(model(x), y), requires_grad=True)  # wrong
        loss = criterion(model(x), y)  # right

When this is fine
    - You call ``parameter.backward(gradient)`` to set a parameter's gradient by hand.
    - An optimizer updates the tensor itself, such as an image that is optimized.

How it is detected
    In a run, the sanitizer reports a call of ``backward()`` without arguments on a tensor that has ``requires_grad``
    but no graph, and that is neither a parameter nor in an optimizer. The linter reports such a call if the tensor was
    computed from a model's output and every connection to the model is cut, also if a function of the program returns
    the copy and the losses of several calls are added up.

References
    PyTorch documentation "Autograd mechanics", https://docs.pytorch.org/docs/stable/notes/autograd.html
    torch.Tensor.requires_grad_, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.requires_grad_.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import LEAF, NO_GRAPH, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, dotted_name, encloses
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.gradient.loss_without_graph.losses_of_functions import copied_losses
from trueloop.failures.gradient.loss_without_graph.rewrapped_results import rewrapped_results
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardStarted, OptimizerCreated

_PARAMETER: Final = re.compile(r"p$|p\d|\w*(param|weight)|w$|self\.(p|w|param)", re.IGNORECASE)


class Detector(BaseDetector):
    """Checks the tensor that every backward pass starts from, once an optimizer exists."""

    def __init__(self) -> None:
        self._has_optimizer = False
        self._backwards = 0

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Record the new optimizer."""
        self._has_optimizer = True

    def on_backward_started(self, event: BackwardStarted) -> Evidence | None:
        """Return evidence for a backward pass that starts from a leaf."""
        self._backwards += 1
        if not event.leaf or not self._has_optimizer:
            return None
        return Evidence(
            message="No weight gets a gradient: `backward()` was called on a tensor that has `requires_grad=True` but "
            "no connection to the model.",
            location=event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if there was no backward pass."""
        return "" if self._backwards else "there was no backward pass"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each backward pass from a model's result that was detached and then marked with ``requires_grad``."""
    optimizers = [each.subject for each in source.ops(OpKind.CREATE) if each.subject.kind is ValueKind.OPTIMIZER]
    for backward in source.ops(OpKind.BACKWARD):
        root, gradient_arguments = backward.subject, {"0", "gradient", "grad_tensors"} & backward.arguments.keys()
        if root.kind is ValueKind.SEQUENCE and len(root.sources) == 1:
            root, gradient_arguments = root.sources[0], gradient_arguments - {"0"}
        if (
            isinstance(backward.node, ast.Call)
            and source.qualified_name(backward.node.func) == "torch.autograd.backward"
        ):
            gradient_arguments -= {"0"}  # argument 0 is the loss
        leaf = None if gradient_arguments or root.union else _detached_leaf(source, root, backward)
        leaf = leaf or (None if gradient_arguments else _copied_output(root) or _marked_output(source, root, backward))
        optimized = leaf is not None and any(root is each for optimizer in optimizers for each in optimizer.ancestors())
        if leaf is not None and not optimized and any(each.kind is ValueKind.MODEL for each in root.ancestors(2000)):
            yield Hit(
                message=f"`{ast.unparse(backward.node)}` gives no weight a gradient: the loss is detached from the "
                "model.",
                node=backward.node,
                related=((leaf, "`requires_grad` is set here"),) if leaf is not backward.node else (),
                fix=_use_attached_loss(source, root),
            )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and each output or loss that a function copies into a leaf before its backward pass."""
    found = list(find(source))
    yield from found
    if any(each.related for each in found):
        return
    reported = {id(each.node) for each in found}
    attached = {id(each.node) for each in source.ops(OpKind.BACKWARD) if _is_attached(each.subject)}
    for rewrapped in rewrapped_results(source):
        if any(encloses(rewrapped.statement, each.node) for each in found) or id(rewrapped.backward) in attached:
            continue
        yield Hit(
            message=f"`{ast.unparse(rewrapped.statement)}` cuts `{rewrapped.name}` off from the model: "
            f"`{ast.unparse(rewrapped.backward)}` gives no weight a gradient.",
            node=rewrapped.statement,
            related=((rewrapped.backward, "the backward pass"),),
            severity=None if rewrapped.is_copy else Severity.WARNING,
        )
        reported.add(id(rewrapped.backward))
    for copied in copied_losses(source):
        if id(copied.backward) not in reported:
            yield Hit(
                message=f"`{ast.unparse(copied.backward)}` gives no weight a gradient: `{ast.unparse(copied.copy)}` "
                "cuts the loss off from the model.",
                node=copied.backward,
                related=((copied.copy, "the loss is copied here"),),
            )


def _is_attached(root: AbstractValue) -> bool:
    return LEAF not in root.facts and any(each.kind is ValueKind.MODEL for each in root.autograd_graph())


def _detached_leaf(source: SourceFile, root: AbstractValue, backward: Op) -> Any:
    """Return the node that set ``requires_grad`` of a detached loss; None if the loss is attached or not changed."""
    if LEAF in root.facts:
        return root.node
    if root.name == "requires_grad_" and root.sources:
        root = root.sources[0]
    requests = [
        each for each in source.ops_of_run(backward) if each.kind is OpKind.SET_REQUIRES_GRAD and each.subject is root
    ]
    earlier = [each for each in requests if each.value is True and each.index < backward.index]
    return earlier[-1].node if earlier and _is_detached(root) else None


def _copied_output(root: AbstractValue) -> Any:
    """Return the node that wraps a detached output of a model in a new leaf, if a loss reaches nothing else."""
    graph = list(root.autograd_graph())
    known = (ValueKind.TENSOR, ValueKind.CONSTANT, ValueKind.SEQUENCE, ValueKind.NAME)
    leaves = [each for each in graph if LEAF in each.facts]
    if not leaves or any(each.kind not in known for each in graph):
        return None
    outputs = [each for each in leaves if any(v.kind is ValueKind.MODEL for v in each.ancestors())]
    return outputs[0].node if len(outputs) == len(leaves) else None


def _marked_output(source: SourceFile, root: AbstractValue, backward: Op) -> Any:
    """Return the node that marks an output computed under ``no_grad``, if a loss reaches no trained part otherwise."""
    read = [dotted_name(each.value) for each in source.nodes_of(ast.Attribute) if each.attr == "grad"]
    if any(each.kind is ValueKind.MODEL for each in root.autograd_graph()) or not all(map(_PARAMETER.match, read)):
        return None  # the gradient of the output is passed on to the model in a second pass
    run = source.ops_of_run(backward)
    outputs = {id(each.result) for each in run if each.kind is OpKind.MODEL_CALL and each.grad is False}
    marks = {
        id(each.subject): each.node
        for each in run
        if each.kind is OpKind.SET_REQUIRES_GRAD and each.value is True and id(each.subject) in outputs
    }
    return next((marks[id(each)] for each in root.ancestors() if id(each) in marks), None)


def _is_detached(value: AbstractValue, depth: int = 20) -> bool:
    """Return True if no path through the graph leads from a tensor to a trained parameter."""
    if NO_GRAPH in value.facts or value.kind in (ValueKind.CONSTANT, ValueKind.NAME):
        return True
    if value.kind is ValueKind.UNKNOWN:
        return not value.union and isinstance(value.node, ast.arg | ast.For | ast.Name)  # certainly data
    if value.kind is not ValueKind.TENSOR or LEAF in value.facts or value.union or not value.sources or not depth:
        return False
    return all(_is_detached(each, depth - 1) for each in value.sources)


def _use_attached_loss(source: SourceFile, root: AbstractValue) -> Fix | None:
    """Return the fix that uses the loss itself; None unless the leaf is a copy of a loss that has its graph."""
    call = root.node
    if LEAF not in root.facts or not isinstance(call, ast.Call) or not call.args or not root.sources:
        return None
    if not any(each.kind is ValueKind.MODEL for each in root.sources[0].autograd_graph()):
        return None
    edit = source.text.replace(call, source.text.segment(call.args[0]))
    return Fix((edit,), safe=False, description="Use the loss itself, with its graph")


RULE = Rule(required_words=(".backward(", "requires_grad"), find=find_all)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(loop.settings["precision"] != "float16", "A GradScaler scales the loss.", precision="float32")
    loop.pieces[Piece.BACKWARD] = "loss = loss.detach().requires_grad_()\n" + loop.pieces[Piece.BACKWARD]


BAD = """
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
"""

FAILURE = Failure(
    code="GRD009",
    title="Backward starts from a detached loss",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "with torch.no_grad():\n        prediction = model(x)": "prediction = model(x)",
            "    loss.requires_grad_(True)\n": "",
        },
    ),
    fix="Compute the loss from the model's output without detaching it, and remove requires_grad_().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
