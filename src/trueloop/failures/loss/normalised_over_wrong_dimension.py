"""A softmax before a loss normalises over the samples or the positions instead of the classes.

What you see
    The loss falls, but the accuracy stays poor or depends on the batch size. The model learns which sample of the batch
    fits a class best, instead of which class fits a sample best.

Why it happens
    ``log_softmax`` returns the same shape for every ``dim``, so ``nll_loss`` accepts the result. For example, ``dim=0``
    is wrong for [batch, classes], and ``dim=-1`` is wrong for [batch, classes, positions]. Without ``dim``, PyTorch
    warns and uses 0 for tensors with one or three dimensions, and 1 for others.

Fix
    Normalise over the classes (``dim=-1`` if they are the last dimension), or use ``cross_entropy`` on the logits.

        nll_loss(log_softmax(x, dim=0), targets)  # wrong
        nll_loss(log_softmax(x, dim=1), targets)  # right

When this is fine
    - The input is a single sample of shape [classes], where ``dim=0`` is right.
    - You use ``cross_entropy``, which knows the dimension of the classes.
    - You compute a contrastive loss over the columns of a matrix of similarities.
    - The softmax is an attention over positions inside the model.
    - The log-probabilities are over the classes, and are reshaped to [tokens, classes] before the loss.

How it is detected
    In a run, the sanitizer reports an ``nll_loss`` whose input comes from a ``log_softmax``, or from the logarithm of a
    softmax, over another dimension than the classes, with nothing but reshapes in between. The linter reports a softmax
    or log-softmax with ``dim=0`` of a linear layer's result, directly before a loss or at the end of a model in the
    same file, if the model gets whole batches: of a loader with a batch size above 1, a slice of a tensor, ``x[i:i+n]``
    in a loop over ``range(0, len(x), n)``, or a tensor that is created with two sizes; or of any result, if the program
    reads the classes in dimension 1, as in ``out.argmax(1)``. It also reports a softmax whose result is summed over the
    same dimension for each class, as in a Dice loss: such a sum does not depend on the model.

References
    fxia22/pointnet.pytorch#27, "Dim0 means the dimension of batch. However, the log_softmax should be applied along
    the channels", https://github.com/fxia22/pointnet.pytorch/issues/27
    pytorch/pytorch#37399, "debugging my model for hours until I realized I'm doing softmax along the wrong dimension",
    https://github.com/pytorch/pytorch/pull/37399
    MicrosoftDocs/pytorchfundamentals#21, https://github.com/MicrosoftDocs/pytorchfundamentals/pull/21
    torch.nn.LogSoftmax, https://docs.pytorch.org/docs/stable/generated/torch.nn.LogSoftmax.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.activations import LOG_SOFTMAX, SOFTMAX, layer_before
from trueloop.analysis.queries.batch_first import tensors
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import loops_around
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, integer, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import BackwardLosses

_READING: Final = frozenset(("argmax", "max", "gather"))
_RESHAPES: Final = re.compile(r"flatten|view|reshape|einsum|rearrange|unsqueeze")


class Detector(BaseDetector):
    """Checks the dimension of each log-softmax before a loss."""

    def __init__(self) -> None:
        self._checked = False

    def on_backward_losses(self, event: BackwardLosses) -> Iterator[Evidence]:
        """Return evidence for each loss whose log-softmax does not normalise over the classes."""
        for loss in event.losses:
            self._checked |= loss.kind == "cross_entropy"
            if loss.normalised_over is None or not loss.shape:
                continue
            dimension, size = loss.normalised_over
            elements = "samples of the batch" if dimension == 0 else "values"
            yield Evidence(
                message=f"The softmax before this loss normalises over the {size} {elements} in dimension "
                f"{dimension} instead of the {loss.shape[1]} classes in dimension 1.",
                location=loss.location or event.location,
                related=((event.location, "`backward()`"),) if loss.location and event.location else (),
            )

    def inconclusive(self) -> str:
        """Return a reason if no log-softmax was found before a loss."""
        return "" if self._checked else "no log_softmax before a PyTorch loss was found in a graph"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss whose input is normalised over the samples of a batch."""
    created = [each for each in source.ops(OpKind.CREATE) if each.subject.kind is ValueKind.LOSS]  # nn.NLLLoss(z, y)
    for loss in (*source.ops(OpKind.LOSS), *created):
        value = loss.inputs[0] if loss.inputs else None
        softmax = None if value is None else value.origin()
        if softmax is None or value is None or softmax.name not in SOFTMAX | LOG_SOFTMAX:
            continue
        layer = layer_before(softmax)
        is_of_layer = layer is not None and layer.name == "torch.nn.Linear" and _is_batched(source, value)
        is_of_pairs = any(each.name == "torch.arange" for each in loss.inputs[1:])
        if _dimension(softmax) != 0 or not (is_of_layer or (not is_of_pairs and _is_read_by_class(source, softmax))):
            continue
        call = softmax.node
        number = next((each for each in nodes_in(call, ast.Constant) if each.value == 0), None)
        edit = source.text.replace(number, "1") if number is not None else None
        yield Hit(
            message=f"`{ast.unparse(call)}` normalises over the samples of the batch: the classes are dimension 1.",
            node=call,
            related=((loss.node, "the loss"),),
            severity=Severity.WARNING,
            fix=Fix((edit,), safe=False, description="Normalise over the classes") if edit else None,
        )
    yield from _summed_again(source)


def _summed_again(source: SourceFile) -> Iterator[Hit]:
    """Yield each softmax over a dimension over which the same function sums the result for each class."""
    for call in source.all_calls if "softmax" in source.text.source.lower() else ():
        over = _given_dimension(call)
        statement = source.parents.get(id(call))
        if over is None or not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name, function = statement.targets[0].id, function_of(source, call)
        stores = [each for each in nodes_in(function, ast.Name) if each.id == name and isinstance(each.ctx, ast.Store)]
        if len(stores) > 1 or _RESHAPES.search(ast.unparse(call)):
            continue
        for total in nodes_in(function, ast.Call):
            summed = _summed_dimensions(total)
            is_class = over % 4 in summed and len(summed) > 1 and 1 not in summed
            if is_class and _reads(total, name) and not _RESHAPES.search(ast.unparse(total)):
                yield Hit(
                    message=f"`{ast.unparse(call)}` normalises over dimension {over}, but the sum for each class is "
                    "over the same dimension: the classes are dimension 1.",
                    node=call,
                    related=((total, "summed here"),),
                    severity=Severity.WARNING,
                )
                break


def _given_dimension(call: ast.Call) -> int | None:
    """Return the dimension of ``F.softmax(x, dim=-1)``, ``x.softmax(-1)`` and ``nn.Softmax(dim=-1)(x)``."""
    made = call.func if isinstance(call.func, ast.Call) else call
    if last_name(made.func) not in ("softmax", "Softmax"):
        return None
    given = [each.value for each in made.keywords if each.arg == "dim"] or made.args[-1:]
    return integer(given[0]) if given else None


def _summed_dimensions(call: ast.Call) -> set[int]:
    """Return the dimensions of ``x.sum((0, 2, 3))`` and ``torch.mean(x, dim=(2, 3))``, counted from the first of 4."""
    if last_name(call.func) not in ("sum", "mean"):
        return set()
    for each in (*(keyword.value for keyword in call.keywords if keyword.arg == "dim"), *call.args[-1:]):
        if isinstance(each, ast.Tuple | ast.List):
            numbers = [integer(element) for element in each.elts]
            return {number % 4 for number in numbers if number is not None}
    return set()


def _reads(node: ast.AST, name: str) -> bool:
    return any(each.id == name for each in nodes_in(node, ast.Name))


def _dimension(softmax: AbstractValue) -> object:
    """Return the dimension of a softmax or log-softmax, if it is a constant."""
    position = "1" if softmax.name.startswith(("torch.softmax", "torch.log_softmax", "torch.nn.functional")) else "0"
    dim = softmax.arguments.get("dim") or softmax.arguments.get(position)
    return None if dim is None else dim.constant()


def _is_read_by_class(source: SourceFile, softmax: AbstractValue) -> bool:
    """Return True if the program reads the classes of a softmax in dimension 1: ``out.argmax(1)``."""
    for each in tensors(source):
        if each.name.rpartition(".")[2] in _READING and isinstance(each.node, ast.Call) and each.sources:
            is_function = source.qualified_name(each.node.func).startswith("torch.")
            dimension = argument_node(each.node, "dim", 1 if is_function else 0)
            origin = each.sources[0].origin()
            if dimension is not None and integer(dimension) == 1 and origin is not None and origin.node is softmax.node:
                return True
    return False


def _is_batched(source: SourceFile, value: AbstractValue) -> bool:
    """Return True if a tensor is certainly computed from whole batches, of which no single sample is taken."""
    found = False
    for each in value.ancestors():
        is_tensor = each.kind is ValueKind.TENSOR
        index = each.node.slice if is_tensor and isinstance(each.node, ast.Subscript) else None
        if isinstance(index, ast.Constant | ast.Name) or (each.name == "batch" and _is_sample(each)):
            return False
        if each.kind is ValueKind.LOADER:
            size = each.arguments.get("batch_size") or each.arguments.get("1")
            plain = each.name == "torch.utils.data.DataLoader" and "collate_fn" not in each.arguments
            number = None if size is None else size.constant()
            found |= plain and isinstance(number, int) and number > 1
        elif is_tensor and (isinstance(index, ast.Slice) or each.name in ("torch.randn", "torch.rand")):
            sizes = [each.arguments[key].constant() for key in ("0", "1") if key in each.arguments]
            found |= isinstance(index, ast.Slice) or (
                len(sizes) == 2 and all(isinstance(n, int) and n > 1 for n in sizes)
            )
        elif each.kind is ValueKind.UNKNOWN:
            found |= isinstance(each.node, ast.Subscript) and _is_slice_of_batches(source, each.node)
    return found


def _is_slice_of_batches(source: SourceFile, node: ast.Subscript) -> bool:
    """Return True for ``x[i : i + n]`` in a loop over ``range(0, len(x), n)``, of whatever kind of data."""
    match node.slice:
        case ast.Slice(lower=ast.Name(id=name), upper=ast.BinOp(left=ast.Name(id=other), op=ast.Add(), right=size)):
            pass
        case _:
            return False
    for loop in loops_around(source, node):
        ranges = [each for each in nodes_in(loop.iter, ast.Call) if last_name(each.func) in ("range", "trange")]
        steps = [ast.unparse(each.args[2]) for each in ranges if len(each.args) == 3]
        if isinstance(loop.target, ast.Name) and loop.target.id == name == other and ast.unparse(size) in steps:
            return True
    return False


def _is_sample(value: AbstractValue) -> bool:
    """Return True for an item of a dataset, without a loader."""
    return any(each.kind is ValueKind.DATASET for each in value.sources)


RULE = Rule(required_words=("oftmax", "oss|entropy|ice|.sum(", "0|2"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.replace(Piece.CRITERION, "nn.CrossEntropyLoss()", "nn.NLLLoss()")
    loop.replace(Piece.FORWARD, "model(inputs)", "model(inputs).log_softmax(0)")
    loop.replace(Piece.EVALUATION, "model(inputs)", "model(inputs).log_softmax(0)")


BAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(200, 6)
labels = inputs[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = F.nll_loss(F.log_softmax(model(inputs), dim=0), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}, accuracy {(model(inputs).argmax(1) == labels).float().mean():.2f}")
"""

FAILURE = Failure(
    code="LOS007",
    title="Softmax is over the wrong dimension",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "loss = F.nll_loss(F.log_softmax(model(inputs), dim=0), labels)": (
                "loss = F.nll_loss(F.log_softmax(model(inputs), dim=1), labels)"
            )
        },
    ),
    fix="Normalise over the classes: log_softmax(x, dim=1), or use cross_entropy on the logits.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
