"""The loss is computed over all rows, although a mask or a list of indices holds some of them out.

What you see
    The accuracy on the test nodes of a graph is far better than in the paper, or the test rows are predicted as well as
    the training rows.

Why it happens
    In node classification, and wherever all rows are one batch, the model gets the held-out rows too, and computes
    outputs for them. Only the mask in the loss keeps their labels out of the training. Without the mask, the shapes
    still fit.

Fix
    Select the training rows of outputs and labels:

        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

When this is fine
    - The labels of the held-out rows were replaced by the ``ignore_index`` of the loss.
    - The mask is used elsewhere in the training: by a loader, a helper, or as weights of an unreduced loss.
    - The loss has no labels: the reconstruction of an autoencoder, for example.

How it is detected
    Only the linter finds it: a loss of a training step gets the outputs of the model for all rows and all labels, the
    evaluation selects rows of the same labels by a mask or by indices that are called test or validation, and no mask
    or list of training rows is used outside of the evaluation; or a training step gets such a mask, unread.

References
    DGL, "Process data", on masks of nodes, https://www.dgl.ai/dgl_docs/_sources/guide/data-process.rst.txt
    torch.nn.CrossEntropyLoss, on ignore_index, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of, is_loss_call
from trueloop.analysis.queries.class_instances import called_function, definitions
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, data_words, is_held_out, is_training
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ROWS: Final = frozenset((
    "mask", "masks", "idx", "idxs", "index", "indices", "inds", "ind", "ids", "id", "nodes", "rows", "nid", "node",
))  # fmt: skip
_FINITE: Final = re.compile(r"is(finite|nan|inf)\(")
_DRAWN: Final = re.compile(r"rand|perm|shuffle|arange|split|fold")
_SHOWN: Final = frozenset(("print", "len", "info", "sum", "format"))
_NO_GRADIENTS: Final = frozenset(("no_grad", "inference_mode", "eval"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss over all rows of labels of which the evaluation selects the held-out ones."""
    yield from _rows_not_read(source)
    selected = _held_out_labels(source)
    calls = [each for each in source.all_calls if len(each.args) > 1] if selected else []
    losses = [each for each in calls if is_loss_call(source, each)]
    losses = [each for each in losses if last_name(each.args[1]) in selected and _is_trained(source, each)]
    if not losses or _selects_training_rows(source):
        return
    for loss in losses:
        label, outputs = loss.args[1], loss.args[0]
        if _is_part(source, label) or not _is_of_all_rows(source, outputs) or _is_reduced_later(loss):
            continue
        row = selected[last_name(label)]
        yield Hit(
            message=f"`{ast.unparse(loss)}` is computed over all rows, also those that `{ast.unparse(row)}` evaluates: "
            "no rows are selected for the training.",
            node=loss,
            related=((row, "held-out rows are selected here"),),
        )


def _rows_not_read(source: SourceFile) -> Iterator[Hit]:
    """Yield the loss of each training step that gets the training rows as an argument and does not read it."""
    for function in source.nodes_of(ast.FunctionDef):
        rows = [each for each in function.args.args if is_training(ast.Name(each.arg)) and name_words(each.arg) & _ROWS]
        read = {each.id for each in nodes_in(function, ast.Name)} if rows else set()
        losses = [each for each in nodes_in(function, ast.Call) if rows and is_loss_call(source, each)]
        losses = [each for each in losses if len(each.args) > 1 and _is_trained(source, each)]
        is_unread = len(rows) == 1 and rows[0].arg not in read and len(losses) == 1
        if is_unread and not any(nodes_in(each, ast.Subscript) for each in losses[0].args[:2]):
            yield Hit(
                message=f"`{ast.unparse(losses[0])}` is computed over all rows: `{function.name}` gets "
                f"`{rows[0].arg}` and does not use it, so the held-out rows are trained on.",
                node=losses[0],
            )


def _held_out_labels(source: SourceFile) -> dict[str, ast.Subscript]:
    """Return the variables or attributes of which held-out rows are selected, by their name."""
    found: dict[str, ast.Subscript] = {}
    for each in source.nodes_of(ast.Subscript):
        name = last_name(each.value) if isinstance(each.value, ast.Name | ast.Attribute) else ""
        if name and isinstance(each.slice, ast.Name | ast.Attribute) and _are_rows(source, each.slice):
            if isinstance(each.ctx, ast.Store):
                return {}  # labels[test_mask] = -1
            passed = [last_name(value) for value in possible_values(source, each.value)]  # to a function as `labels`
            found = dict.fromkeys(filter(None, (name, *passed)), each) | found
    return found


def _are_rows(source: SourceFile, index: ast.expr) -> bool:
    """Return True for an index that is called a mask or a list of held-out rows, also where it is an argument."""
    values = [index, *(possible_values(source, index) if not is_held_out(index) else ())]
    return any(is_held_out(each) and data_words(each) & _ROWS for each in values) and not _are_usable(source, index)


def _are_usable(source: SourceFile, index: ast.expr) -> bool:
    """Return True for rows that are only called valid, and that a comparison selects, such as ``weight > 0.1``."""
    if data_words(index) & HELD_OUT != {"valid"}:
        return False
    values = possible_values(source, index)
    compared = [each for each in values if nodes_in(each, ast.Compare) or _FINITE.search(ast.unparse(each))]
    return len(compared) > 0 and not any(_DRAWN.search(ast.unparse(each)) for each in values)


def _is_trained(source: SourceFile, loss: ast.Call) -> bool:
    """Return True if the function around a loss, or the one that calls it, runs a backward pass."""
    function = function_of(source, loss)
    is_judged = any(encloses(each, loss) for each in source.nodes_of(ast.With) if _has_no_gradients(each.items))
    backward = any(last_name(each.func) == "backward" for each in nodes_in(function, ast.Call))
    return backward and not is_judged


def _has_no_gradients(nodes: list[Any]) -> bool:
    return any(last_name(e) in _NO_GRADIENTS for each in nodes for e in nodes_in(each, ast.Name, ast.Attribute))


def _selects_training_rows(source: SourceFile) -> bool:
    """Return True if a mask or a list of training rows is used in anything but the evaluation and the held-out rows."""
    for each in source.nodes_of(ast.Subscript, ast.JoinedStr, ast.Call):
        if isinstance(each, ast.JoinedStr):
            texts = [e.value for e in each.values if isinstance(e, ast.Constant)]
            if any(name_words(str(text)) & _ROWS for text in texts) and not _is_shown(source, each):
                return True  # data[f"{split}_mask"]
        keys: list[Any] = [each.slice] if isinstance(each, ast.Subscript) else []
        if isinstance(each, ast.Call) and last_name(each.func) in ("get", "getattr"):
            keys = each.args
        named = [key for key in keys if isinstance(key, ast.Constant) and name_words(str(key.value)) & TRAINING]
        if named and not _is_shown(source, each):
            return True  # split_idx["train"]
    return any(
        name_words(last_name(each)) & _ROWS and is_training(each) and _is_used(source, each)
        for each in source.nodes_of(ast.Name, ast.Attribute)
    )


def _is_used(source: SourceFile, node: Any) -> bool:
    """Return True if a training step may use a variable where it is read."""
    if isinstance(node.ctx, ast.Store) or _is_shown(source, node):
        return False
    parent: Any = source.parents.get(id(node))
    if isinstance(parent, ast.Subscript) and parent.value is node and isinstance(parent.ctx, ast.Store):
        return False  # train_mask[:100] = True
    statement = source.statement_of(node)
    if isinstance(statement, ast.Assign):
        own = ast.unparse(node)
        return not all(is_held_out(each) or ast.unparse(each) == own for each in statement.targets)
    return True


def _is_shown(source: SourceFile, node: ast.AST) -> bool:
    """Return True if a node is printed, or part of an evaluation, as an argument in `accuracy(out, y, train_mask)` is.

    A function that also gets the held-out rows is such an evaluation.
    """
    parent: Any = node
    while parent is not None and not isinstance(parent, ast.Module):
        if isinstance(parent, ast.Call) and (last_name(parent.func) in _SHOWN or _gets_held_out(source, parent.func)):
            return True
        if isinstance(parent, ast.With) and _has_no_gradients(parent.items):
            return True
        if isinstance(parent, ast.FunctionDef):
            calls = {last_name(each.func) for each in nodes_in(parent, ast.Call)}
            return (bool(calls & _NO_GRADIENTS) or _has_no_gradients(parent.decorator_list)) and "backward" not in calls
        parent = source.parents.get(id(parent))
    return False


def _gets_held_out(source: SourceFile, function: ast.expr) -> bool:
    """Return True if a function of the program, which computes no loss, is also called with held-out rows."""
    name = last_name(function)
    calls = definitions(source).calls.get(name, []) if name else []
    called = called_function(source, calls[0]) if calls else None
    if (
        called is None
        or is_loss_call(source, calls[0])
        or any(is_loss_call(source, e) for e in nodes_in(called, ast.Call))
    ):
        return False
    return any(
        is_held_out(each) and data_words(each) & _ROWS
        for call in calls
        for each in call.args
        if isinstance(each, ast.Name | ast.Attribute)
    )


def _is_part(source: SourceFile, label: ast.expr) -> bool:
    """Return True if labels may be those of a batch, or a selection of rows."""
    name = last_name(label)
    loops = source.nodes_of(ast.For, ast.comprehension)
    if any(name == last_name(each) for loop in loops for each in nodes_in(loop.target, ast.Name, ast.Attribute)):
        return True
    if any(last_name(each) in ("batch", "subgraph") for each in nodes_in(label, ast.Name)):
        return True
    values = [each.value for each in source.nodes_of(ast.Assign) if any(last_name(t) == name for t in each.targets)]
    return any(last_name(each) == name for value in values for each in nodes_in(value, ast.Subscript))


def _is_of_all_rows(source: SourceFile, outputs: ast.expr) -> bool:
    """Return True for the outputs of a call in which no rows are selected."""
    values = [outputs]
    if isinstance(outputs, ast.Name):
        values = assigned_in(function_of(source, outputs), outputs.id)
    is_call = all(isinstance(each, ast.Call) for each in values)
    return bool(values) and is_call and not any(nodes_in(each, ast.Subscript) for each in values)


def _is_reduced_later(loss: ast.Call) -> bool:
    """Return True if a loss ignores some labels, or returns one value per row."""
    return any(each.arg in ("ignore_index", "reduction", "reduce", "weight") for each in loss.keywords)


RULE = Rule(
    required_words=(
        "backward(",
        re.compile(
            r"\[[\w.]*(?:mask|msk|idx|ind|nodes|rows|nid)[\w.]*\]"
            r"|def \w+\([^)]{0,200}\b(?:train_?(?:mask|idx|ind|nodes|rows|ids)|(?:mask|idx)_train)"
        ),
        "test|val|dev|held",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(200, 8)
y = x[:, :4].argmax(1)
adjacency = torch.eye(200) + (torch.rand(200, 200) < 0.01)
adjacency = adjacency / adjacency.sum(1, keepdim=True)
train_mask = torch.rand(200) < 0.3
test_mask = ~train_mask


class GraphNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x, adjacency):
        return adjacency @ self.last(torch.relu(adjacency @ self.first(x)))


model = GraphNet()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    optimizer.zero_grad()
    out = model(x, adjacency)
    loss = nn.functional.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    predicted = model(x, adjacency).argmax(1)
print((predicted[test_mask] == y[test_mask]).float().mean().item())
"""

FAILURE = Failure(
    code="DAT031",
    title="The loss includes the held-out rows",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"cross_entropy(out, y)": "cross_entropy(out[train_mask], y[train_mask])"}),
    fix="Select the training rows of outputs and labels in the loss.",
    rule=RULE,
)
