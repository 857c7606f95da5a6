"""Label smoothing by hand adds the whole smoothing to each class, so the targets do not sum to 1.

What you see
    The loss is larger than with PyTorch's label smoothing, grows with the number of classes, and the model becomes
    unsure of everything: its largest probabilities stay far below ``1 - smoothing``.

Why it happens
    ``one_hot * (1 - smoothing) + smoothing`` gives every one of the K classes the value ``smoothing``. A row then sums
    to ``1 - smoothing + K * smoothing``, so wrong classes have much more weight than intended.

Fix
    Share the smoothing among the classes, or let PyTorch do it:

        targets = one_hot * (1 - smoothing) + smoothing / num_classes
        loss = nn.CrossEntropyLoss(label_smoothing=smoothing)(logits, labels)

When this is fine
    - The smoothing is divided by the number of classes, before or in the sum.
    - The rows are divided by their sum afterwards.
    - The labels are 0 or 1 for each output on its own, as for ``BCEWithLogitsLoss``.

How it is detected
    Only the linter finds it, from the source code: the result of ``one_hot``, ``scatter`` or a row of ``eye`` is
    multiplied by one minus a value, and the same value is added, in a file that computes a logarithm of a softmax or a
    cross-entropy.

References
    Szegedy et al., "Rethinking the Inception architecture", section 7, https://arxiv.org/abs/1512.00567
    torch.nn.CrossEntropyLoss, ``label_smoothing``,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of, without_conversions
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ONE_HOT: Final = frozenset(("one_hot", "scatter", "scatter_", "eye"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sum that smooths one-hot labels by a value that is not divided by the number of classes."""
    for node in source.nodes_of(ast.BinOp):
        match node:
            case ast.BinOp(op=ast.Add(), left=ast.BinOp(op=ast.Mult()) as product, right=added):
                pass
            case ast.BinOp(op=ast.Add(), left=added, right=ast.BinOp(op=ast.Mult()) as product):
                pass
            case _:
                continue
        for labels, kept in ((product.left, product.right), (product.right, product.left)):
            if _is_rest_of(kept, added) and _is_one_hot(source, labels) and not _is_divided(source, node, added):
                text = source.text.segment(added)
                width = source.text.segment(labels) if isinstance(labels, ast.Name | ast.Attribute) else ""
                edit = source.text.replace(added, f"{text} / {width}.size(1)")
                yield Hit(
                    message=f"`{source.text.segment(node)}` adds `{text}` to every class, so the targets of a sample "
                    "sum to more than 1: divide it by the number of classes.",
                    node=node,
                    fix=Fix((edit,), safe=False, description="Divide it by the number of classes") if width else None,
                )


def _is_rest_of(kept: ast.expr, added: ast.expr) -> bool:
    """Return True if one factor is 1 minus the value that is added: ``1 - smoothing``, or 0.9 for 0.1."""
    match kept, added:
        case ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1 | 1.0), right=right), ast.Name() | ast.Attribute():
            return ast.unparse(right) == ast.unparse(added)
        case ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1 | 1.0), right=ast.Constant(value=share)), ast.Constant():
            return share == added.value
        case ast.Constant(value=float() as share), ast.Constant(value=float() as rest):
            return abs(share + rest - 1) < 1e-9 and rest < 0.5
        case _:
            return False


def _is_one_hot(source: SourceFile, node: ast.expr) -> bool:
    """Return True for one-hot labels, or a variable that holds them."""
    values = [node]
    if isinstance(node, ast.Name):
        function = function_of(source, node)
        values = [e for e in assigned_in(function, node.id) if not any(inner is node for inner in ast.walk(e))]
        calls = [each for each in nodes_in(function, ast.Call) if last_name(each.func) == "scatter_"]
        if any(dotted_name(getattr(each.func, "value", None)) == node.id for each in calls):
            return True
    return bool(values) and all(
        any(last_name(call.func) in _ONE_HOT for call in nodes_in(without_conversions(each), ast.Call))
        or (isinstance(node, ast.Name) and last_name(each) == node.id)
        for each in values
    )


def _is_divided(source: SourceFile, node: ast.BinOp, added: ast.expr) -> bool:
    """Return True if the value, or the sum, is divided by something."""
    function = function_of(source, node)
    statement = source.parents.get(id(node))
    target = dotted_name(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    names = {name for name in (dotted_name(added), target) if name}
    divided = [each.left for each in nodes_in(function, ast.BinOp) if isinstance(each.op, ast.Div)]
    divided += [each.target for each in nodes_in(function, ast.AugAssign) if isinstance(each.op, ast.Div)]
    return any(dotted_name(each) in names or each is node for each in divided)


RULE = Rule(
    required_words=("one_hot|scatter|eye(", "log_softmax|logsumexp|cross_entropy|CrossEntropy|LogSoftmax|.log("),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
labels = x[:, :3].argmax(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
smoothing = 0.1
for epoch in range(5):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        one_hot = nn.functional.one_hot(labels[rows], 3).float()
        targets = one_hot * (1 - smoothing) + smoothing
        loss = -(targets * model(x[rows]).log_softmax(1)).sum(1).mean()
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS050",
    title="Label smoothing is not divided by the number of classes",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"+ smoothing\n": "+ smoothing / 3\n"}),
    fix="Divide the smoothing by the number of classes, or pass label_smoothing to the loss.",
    rule=RULE,
)
