"""A loss is computed, but no backward pass contains it, so the part of the model that it judges never learns.

What you see
    One of several losses does not fall, or only as far as a shared part of the model happens to help. The outputs of
    its head stay as poor as those of random weights.

Why it happens
    A loss changes the weights only if ``backward()`` is called on it, or on a sum that contains it. A second loss that
    is printed or logged looks as if it were trained, and nothing fails if it is missing from the sum.

Fix
    Add the loss to the one that is differentiated:

        loss_class.backward()  # wrong: loss_box is only logged
        (loss_class + loss_box).backward()  # right

When this is fine
    - A second loss of the same prediction is only watched, such as the L1 loss next to the MSE loss.
    - The part is trained elsewhere: by another optimizer, in another phase, or by a caller that gets the loss.
    - The part is frozen or in no optimizer, and its loss is a measurement.

How it is detected
    Only the linter finds it, from the source code: in a loop that contains a backward pass, a variable gets a loss with
    gradients enabled, and the program only prints or logs it, makes a number of it, or does nothing with it. The
    prediction comes from layers that an optimizer steps and that no backward pass of the program reaches. It is silent
    in programs with ``autograd.grad``, and if a backward pass starts from an unknown value.

References
    torch.Tensor.backward, https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html
    PyTorch documentation "Autograd mechanics", https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import FORWARD_RESULT, LEAF, MANAGED, NO_GRAPH, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.late_layers import has_trainable_weights
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_NUMBERS: Final = frozenset(("item", "detach", "data", "tolist", "numpy"))
_OUTPUT: Final = frozenset((
    "print", "log", "info", "debug", "set_postfix", "set_description", "write", "add_scalar", "isnan", "isfinite",
    "float", "format", "log_metric",
))  # fmt: skip
_MAX_VALUES: Final = 2000
_MAX_VARIABLES: Final = 4


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the losses that no backward pass contains, and whose part of the model none reaches."""
    backwards, steps = source.ops(OpKind.BACKWARD), source.ops(OpKind.STEP)
    if not backwards or not steps or "autograd.grad" in source.text.source:
        return
    graphs = [_models_reached(each.subject) for each in backwards]
    if not all(graphs):
        return  # a backward pass from an unknown value may contain anything
    reached = [model for graph in graphs for model in graph]
    seen = set[int]()
    for loss in source.ops(OpKind.LOSS):
        statement = _assignment_of(source, loss)
        if statement is None or id(statement) in seen or not _is_trained_with(loss, backwards):
            continue
        for layer in _models_reached(loss.inputs[0]) if loss.inputs else ():
            if _is_left_out(source, layer, reached, steps) and _is_only_shown(source, statement):
                seen.add(id(statement))
                yield _hit(source, statement, loss, layer, backwards)
                break


def _hit(source: SourceFile, statement: ast.Assign, loss: Op, layer: AbstractValue, backwards: list[Op]) -> Hit:
    name = ast.unparse(statement.targets[0])
    backward = next(each for each in backwards if each.entry_point == loss.entry_point)
    return Hit(
        message=f"`{name}` is computed, but no backward pass contains it: `{source.text.segment(layer.node)}`, which "
        "its prediction comes from, is in an optimizer and never gets a gradient.",
        node=statement,
        related=((backward.node, "the backward pass"), (layer.node, "never gets a gradient")),
    )


def _models_reached(root: AbstractValue) -> list[AbstractValue]:
    """Return the modules that gradients of a value reach: layers, where the program defines the module."""
    found: list[AbstractValue] = []
    seen, queue = set[int](), [root]
    while queue and len(seen) < _MAX_VALUES:
        value = queue.pop()
        if id(value) in seen or value.facts & {NO_GRAPH, LEAF}:
            continue
        seen.add(id(value))
        if value.kind is ValueKind.MODEL:
            found.append(value)
            continue
        inner = value.attributes.get(FORWARD_RESULT)
        is_followed = inner is not None and inner.kind in (ValueKind.TENSOR, ValueKind.SEQUENCE)
        queue += [inner] if inner is not None and is_followed else [*value.sources, *value.union]
    return found


def _assignment_of(source: SourceFile, loss: Op) -> ast.Assign | None:
    """Return the statement that stores a loss in a variable, also where a function of the program returns it."""
    statement = source.statement_of(loss.node)
    for call in reversed(loss.calls):
        if not isinstance(statement, ast.Return):
            break
        statement = source.statement_of(call)
    match statement:
        case ast.Assign(targets=[ast.Name()], value=ast.Call() | ast.BinOp()):
            return statement
        case _:
            return None


def _is_trained_with(loss: Op, backwards: list[Op]) -> bool:
    """Return True if a loss is computed with gradients, in a loop that has a backward pass."""
    return loss.grad is True and any(
        each.entry_point == loss.entry_point and each.grad is not False and each.is_inside(loss.loops[-1])
        for each in (backwards if loss.loops else ())
    )


def _is_left_out(source: SourceFile, layer: AbstractValue, reached: list[AbstractValue], steps: list[Op]) -> bool:
    """Return True if an optimizer holds a layer that no backward pass reaches, and nothing else may train it."""
    if not has_trainable_weights(layer) or any(each.covers(layer) or layer.covers(each) for each in reached):
        return False
    if any(MANAGED in each.facts for each in layer.with_enclosing_modules()):
        return False
    changed_by = source.ops(OpKind.SET_REQUIRES_GRAD, OpKind.LOAD_STATE_DICT)
    is_changed = any(each.subject.covers(layer) or layer.covers(each.subject) for each in changed_by)
    is_stepped = any(each.subject.covers(layer) for each in steps)
    return is_stepped and not is_changed and not source.escapes(layer, source.operations)


def _is_only_shown(source: SourceFile, statement: ast.Assign) -> bool:
    """Return True if the program at most prints a variable, or makes a number of it."""
    function = function_of(source, statement)
    queue, seen = [ast.unparse(statement.targets[0])], set[str]()
    while queue:
        name = queue.pop()
        seen.add(name)
        if len(seen) > _MAX_VARIABLES:
            return False
        for each in nodes_in(function, ast.Name):
            if each.id == name and isinstance(each.ctx, ast.Load):
                user = _user(source, each)
                if isinstance(user, str) and user and user not in seen:
                    queue.append(user)
                elif user is None:
                    return False
    return True


def _user(source: SourceFile, node: ast.expr) -> str | None:
    """Return the variable that a value goes to; "" if it is only shown, None if it goes elsewhere."""
    parent: Any = source.parents.get(id(node))
    while isinstance(parent, ast.expr | ast.keyword):
        called = last_name(parent.func) if isinstance(parent, ast.Call) else ""
        is_number = isinstance(parent, ast.Attribute) and parent.attr in _NUMBERS
        if is_number or called in _OUTPUT or isinstance(parent, ast.FormattedValue | ast.JoinedStr | ast.Compare):
            return ""
        if not isinstance(parent, ast.BinOp | ast.UnaryOp):
            return None
        parent = source.parents.get(id(parent))
    match parent:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)):
            return name
        case ast.Expr():
            return ""
        case _:
            return None


RULE: Final = Rule(required_words=("backward(", "step(", "oss(|entropy|riterion|kl_div|nll"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 10)
classes, sizes = x[:, :3].argmax(1), x[:, :1] * 2
body = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
class_head, size_head = nn.Linear(32, 3), nn.Linear(32, 1)
optimizer = torch.optim.Adam([*body.parameters(), *class_head.parameters(), *size_head.parameters()], lr=0.01)
for epoch in range(4):
    for rows in torch.randperm(320).split(32):
        features = body(x[rows])
        class_loss = nn.functional.cross_entropy(class_head(features), classes[rows])
        size_loss = nn.functional.mse_loss(size_head(features), sizes[rows])
        optimizer.zero_grad()
        class_loss.backward()
        optimizer.step()
    print(epoch, class_loss.item(), size_loss.item())
"""

FAILURE = Failure(
    code="GRD033",
    title="A loss is computed, but no backward pass contains it",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"class_loss.backward()": "(class_loss + size_loss).backward()"}),
    fix="Add the loss to the one that is differentiated, or compute it under `torch.no_grad()`.",
    rule=RULE,
)
