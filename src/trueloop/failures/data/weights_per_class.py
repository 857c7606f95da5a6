"""WeightedRandomSampler gets one weight per class instead of one weight per sample.

What you see
    Training seems to work and overfits at once: an "epoch" consists of the first few samples of the dataset again and
    again. With ``len(weights)`` as the number of samples, an epoch has as many samples as there are classes.

Why it happens
    ``WeightedRandomSampler(weights, n)`` draws indices from ``range(len(weights))``. Three weights of three classes are
    taken for the weights of the samples 0, 1 and 2.

Fix
    Look the weight of each sample up by its label:

        class_weights = 1.0 / torch.bincount(labels)
        sampler = WeightedRandomSampler(class_weights[labels], num_samples=len(labels))

When this is fine
    - The sampler draws classes, from which the program draws samples itself.

How it is detected
    Only the linter finds it, from the source code: the weights are computed from counts of the classes (``bincount``,
    ``Counter``, ``np.unique``, ``value_counts``, ``compute_class_weight``), and no label or index selects from them.

References
    torch.utils.data.WeightedRandomSampler, https://docs.pytorch.org/docs/stable/data.html
    deep-voice/soundbay#49: it "assigns weights to each sample and so it actually will choose the same samples",
    https://github.com/deep-voice/soundbay/pull/49
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_COUNTS: Final = frozenset(("bincount", "Counter", "unique", "value_counts", "compute_class_weight", "histc"))
_MAX_DEPTH: Final = 8


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sampler whose weights are those of the classes."""
    for call in source.all_calls:
        if last_name(call.func) != "WeightedRandomSampler":
            continue
        options = {each.arg: each.value for each in call.keywords}
        weights = call.args[0] if call.args else options.get("weights")
        counted = _counts(source, weights, call, 0) if weights is not None else None
        if weights is not None and counted is not None:
            yield Hit(
                message=f"`{ast.unparse(weights)}` has one weight per class, but the sampler expects one per sample: "
                "it draws only the first samples of the dataset, one for each class.",
                node=call,
                related=((counted, "the samples of each class are counted here"),),
                fix=_look_up(source, weights, counted),
            )


def _counts(source: SourceFile, node: Any, user: ast.AST, depth: int) -> ast.Call | None:
    """Return the call that counts classes if an expression has one number per class; None for other expressions."""
    if depth > _MAX_DEPTH:
        return None
    inner: list[Any] = []
    match node:
        case ast.Name(id=name):
            values = assigned_in(function_of(source, user), name) or assigned_in(source.tree, name)
            inner = values if len(values) == 1 else []
        case ast.Call() if last_name(node.func) in _COUNTS:
            return node
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch" | "np" | "numpy")), args=[first, *_]):
            inner = [first]
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr not in ("sum", "max", "get", "index_select"):
            inner = [owner]
        case ast.Call(func=ast.Name(id="list" | "tuple" | "tensor" | "FloatTensor" | "DoubleTensor"), args=[first, *_]):
            inner = [first]
        case ast.BinOp(left=left, right=right):
            inner = [left, right]
        case ast.ListComp(elt=elt, generators=[generator]):
            selects = bool(nodes_in(elt, ast.Subscript, ast.Call))
            inner = [] if selects else [generator.iter]
        case ast.Attribute(value=owner, attr="values" | "data"):
            inner = [owner]
        case _:
            pass
    found = (_counts(source, each, user, depth + 1) for each in inner)
    return next((each for each in found if each is not None), None)


def _look_up(source: SourceFile, weights: ast.expr, counted: ast.Call) -> Fix | None:
    """Return the fix that selects from the weights by the labels; None if the labels have no name."""
    labels = counted.args[0] if counted.args else None
    is_tensor = last_name(counted.func) == "bincount" and ast.unparse(counted.func) == "torch.bincount"
    if not is_tensor or not isinstance(weights, ast.Name) or not isinstance(labels, ast.Name | ast.Attribute):
        return None
    edit = source.text.replace(weights, f"{weights.id}[{ast.unparse(labels)}]")
    return Fix((edit,), safe=False, description="Use the weight of each sample's class")


RULE = Rule(required_words=("WeightedRandomSampler", "count|unique|Counter|compute_class_weight|histc"), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(0)
x = torch.randn(160, 8)
labels = (x.sum(1) > 1).long() + (x.sum(1) > 2).long()
weights = 1.0 / torch.bincount(labels)
sampler = WeightedRandomSampler(weights, num_samples=160)
loader = DataLoader(TensorDataset(x, labels), batch_size=16, sampler=sampler)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT014",
    title="Sampler gets weights of classes instead of samples",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"WeightedRandomSampler(weights, ": "WeightedRandomSampler(weights[labels], "}),
    fix="Pass one weight per sample: class_weights[labels].",
    rule=RULE,
)
