"""The predicted class is taken along the batch dimension, or is the highest score instead of its index.

What you see
    An accuracy near zero or near chance, while the loss falls as it should; it changes with the batch size.

Why it happens
    The outputs of a classifier have the shape (batch, classes). ``argmax(0)`` looks for the best sample of each class,
    ``argmax()`` for one position in the flattened batch, and ``torch.max(outputs, 1)`` returns the scores first and
    the classes second. The comparison with the labels is broadcast or simply false, without an error.

Fix
    Take the index of the highest score over the classes:

        predicted = outputs.argmax(dim=1)
        correct += (predicted == labels).sum().item()

When this is fine
    - The outputs of a single sample have no batch dimension: ``outputs[0].argmax(0)``.
    - The classes are the first dimension, as in ``(classes, batch)``.
    - The scores themselves are compared: ``scores == scores.max()``.

How it is detected
    Only the linter finds it, from the source code: in a loop over a loader, a prediction that is compared with the
    labels and summed or averaged. It is the ``argmax`` over dimension 0, or over no dimension, of a model's output for
    the whole batch, or the values that ``max`` over a dimension returns. Loaders with a batch size of 1 are not
    reported.

References
    torch.max, which returns values and indices, https://docs.pytorch.org/docs/stable/generated/torch.max.html
    torch.argmax, https://docs.pytorch.org/docs/stable/generated/torch.argmax.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import (
    LOADER_WORDS,
    BatchLoop,
    assigned_in,
    batch_loops,
    compared_sides,
    has_batches_of_one,
    is_label,
    without_conversions,
)
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, dotted_name, nodes_in, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SHAPING: Final = frozenset(("view", "reshape", "squeeze", "flatten", "view_as", "reshape_as", "unsqueeze"))
_ACTIVATIONS: Final = frozenset(("softmax", "log_softmax", "sigmoid", "exp"))
_NOT_MODELS: Final = frozenset(("cat", "stack", "tensor", "zeros", "ones", "argmax", "max", "topk", "next", "list"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each prediction of a wrong dimension that is compared with labels in a loop over batches."""
    for loop in batch_loops(source):
        if has_batches_of_one(source, loop):
            continue
        for node in (each for each in nodes_in(loop.node, ast.expr)):
            sides = compared_sides(node)
            if len(sides) != 2 or not _is_reduced(source, loop, node):
                continue
            for predicted, other in (sides, sides[::-1]):
                if is_label(other) and not is_label(predicted):
                    yield from _judge(source, loop, predicted)


def _judge(source: SourceFile, loop: BatchLoop, predicted: ast.expr) -> Iterator[Hit]:
    """Yield the operation that computes a prediction, if it takes the wrong dimension or the scores."""
    value, part = _origin(loop, predicted, None)
    match value:
        case ast.Call(func=ast.Attribute(attr="argmax" | "max" as name, value=owner), args=args, keywords=keywords):
            pass
        case _:
            return
    is_function = dotted_name(owner) in ("torch", "np", "numpy")
    outputs, rest = (args[0], args[1:]) if is_function and args else (owner, args)
    dimension = next((each.value for each in keywords if each.arg in ("dim", "axis")), rest[0] if rest else None)
    number = dimension.value if isinstance(dimension, ast.Constant) else None if dimension is None else "?"
    text = ast.unparse(value)
    if name == "max" and part == 0 and dimension is not None and not isinstance(number, str):
        message = f"`{text}` returns the highest scores first, then the classes: here the scores are compared."
        edit = _index_of_class(source, value)
    elif (number == 0 and (name == "argmax" or part == 1)) or (number is None and name == "argmax" and not rest):
        if not _is_output_of_batch(loop, outputs):
            return
        what = "takes one position in the whole batch" if number is None else "is the best sample for each class"
        message = f"`{text}` {what}, not the class of each sample: the classes are dimension 1."
        edit = source.text.replace(dimension, "1") if dimension is not None else None
    else:
        return
    fix = Fix((edit,), safe=False, description="Take the class of each sample") if edit else None
    yield Hit(message=message, node=value, fix=fix, severity=Severity.WARNING)


def _index_of_class(source: SourceFile, value: ast.Call) -> Edit | None:
    """Return the edit that takes the indices of ``torch.max(outputs, 1)[0]``; None for other ways to unpack it."""
    parent: Any = source.parents.get(id(value))
    if isinstance(parent, ast.Subscript) and parent.value is value:
        return source.text.replace(parent.slice, "1")
    return None


def _origin(loop: BatchLoop, node: ast.expr, part: int | None, depth: int = 0) -> tuple[ast.expr, int | None]:
    """Return the call that computes a prediction, and which of its results it is."""
    node = without_conversions(node)
    match node:
        case ast.Subscript(value=inner, slice=ast.Constant(value=int() as number)) if number in (0, 1):
            return without_conversions(inner), number
        case ast.Attribute(value=inner, attr="values" | "indices" as attr):
            return inner, int(attr == "indices")
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in _SHAPING and dotted_name(inner) != "torch":
            return _origin(loop, inner, part, depth + 1)
        case ast.Name(id=name) if depth < 4:
            found = _assignments(loop, name)
            return _origin(loop, found[0][0], found[0][1], depth + 1) if len(found) == 1 else (node, part)
        case _:
            return node, part


def _assignments(loop: BatchLoop, name: str) -> list[tuple[ast.expr, int | None]]:
    """Return the values that a loop assigns to a variable, and their positions in an unpacked tuple."""
    found: list[tuple[ast.expr, int | None]] = [(each, None) for each in assigned_in(loop.node, name)]
    for each in nodes_in(loop.node, ast.Assign):
        if isinstance(each.targets[0], ast.Tuple):
            names = [getattr(target, "id", "") for target in each.targets[0].elts]
            if name in names:
                found.append((each.value, names.index(name)))
    return found


def _is_output_of_batch(loop: BatchLoop, node: ast.expr, depth: int = 0) -> bool:
    """Return True for the result of a call with a variable of the batch, perhaps after an activation."""
    node = without_conversions(node)
    if isinstance(node, ast.Name) and depth < 4:
        found = _assignments(loop, node.id)
        return len(found) == 1 and found[0][1] is None and _is_output_of_batch(loop, found[0][0], depth + 1)
    if not isinstance(node, ast.Call) or not node.args:
        return False
    if last_name(node.func) in _ACTIVATIONS:
        inner = node.args[0] if isinstance(node.args[0], ast.Name | ast.Call) else getattr(node.func, "value", None)
        return inner is not None and _is_output_of_batch(loop, inner, depth + 1)
    batch = {each.id for each in nodes_in(loop.node.target, ast.Name)} - {loop.counter}
    passed = {each.id for each in nodes_in(node.args[0], ast.Name)}
    is_indexed = bool(nodes_in(node.args[0], ast.Subscript))
    return bool(batch & passed) and not is_indexed and last_name(node.func) not in (_NOT_MODELS | _SHAPING)


def _is_reduced(source: SourceFile, loop: BatchLoop, node: ast.expr) -> bool:
    """Return True if a comparison is summed or averaged, directly or through a variable."""
    parent: Any = source.parents.get(id(node))
    while isinstance(parent, ast.Attribute | ast.Call):
        if isinstance(parent, ast.Call) and last_name(parent.func) in ("sum", "mean"):
            return True
        parent = source.parents.get(id(parent))
    name = dotted_name(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
    uses = (each for each in nodes_in(loop.node, ast.Call) if last_name(each.func) in ("sum", "mean"))
    return bool(name) and any(name in {dotted_name(inner) for inner in walk(each)} for each in uses)


RULE = Rule(required_words=("max(", "==|.eq(", LOADER_WORDS, "correct|acc|total|sum(|mean(|err"), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    correct = 0
    for inputs, labels in loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        nn.functional.cross_entropy(outputs, labels).backward()
        optimizer.step()
        correct += (torch.max(outputs, 1)[0] == labels).sum().item()
    print("accuracy", correct / len(loader.dataset))
"""

FAILURE = Failure(
    code="EVL011",
    title="Predicted class is taken from the wrong dimension",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"torch.max(outputs, 1)[0]": "torch.max(outputs, 1)[1]"}),
    fix="Take the index of the highest score over the classes: outputs.argmax(dim=1).",
    rule=RULE,
)
