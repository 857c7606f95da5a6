"""Gradients of single losses are read from ``.grad``, which still holds those of the losses before.

What you see
    Weights that shall balance loss terms are wrong: each term seems to have a larger gradient than the one before. All
    Grad-CAM maps look alike. The Fisher information of EWC grows with the number of samples, and so does influence.

Why it happens
    ``backward()`` adds to ``.grad``. After the second of several backward passes it holds the sum of both, and the
    first one has added to what the last training step left there.

Fix
    Clear the gradients before each backward pass, or compute them without ``.grad``:

        for loss in losses:
            model.zero_grad()
            loss.backward(retain_graph=True)
            norms.append(sum(p.grad.pow(2).sum() for p in model.parameters()).sqrt())

        grads = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)

When this is fine
    - The gradient of the sum of all losses is read after the loop.
    - Each iteration has a new leaf or a new model: ``x = image.clone().requires_grad_()``.
    - The gradient before is subtracted.
    - The values are only printed, to show how PyTorch adds gradients up.

How it is detected
    Only the linter finds it, from the source code: a loop, or a function that is called in a loop or several times,
    calls ``backward()`` and then reads ``.grad`` of the same tensors to store a norm, a square or a copy, and neither
    the loop nor a function that it calls clears the gradients or updates weights. The same goes for two backward passes
    in one block with a read after each.

References
    torch.Tensor.backward: "This function accumulates gradients in the leaves",
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html
    Kirkpatrick et al., 2017, "Overcoming catastrophic forgetting in neural networks", arXiv:1612.00796
    Wang, Yu and Perdikaris, 2020, "When and why PINNs fail to train: A neural tangent kernel perspective",
    arXiv:2007.14527
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.queries.shuffled_loaders import passed_argument
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_COMPREHENSIONS: Final = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_LOOPS: Final = ast.For | ast.While | _COMPREHENSIONS
_FUNCTIONS: Final = ast.FunctionDef | ast.AsyncFunctionDef
_BACKWARD: Final = ("backward", "manual_backward")
_PARAMETERS: Final = ("parameters", "named_parameters")
_MEASURING: Final = frozenset((
    "norm", "clone", "detach", "flatten", "view", "reshape", "pow", "square", "abs", "mean", "max", "sum", "cpu",
    "ravel", "numpy", "item", "float", "double", "data", "vector_norm", "sqrt", "tolist", "amax", "std", "var", "cat",
    "stack", "append", "extend", "add_", "relu", "squeeze", "unsqueeze", "copy", "to", "parameters_to_vector",
))  # fmt: skip
"""Functions between ``.grad`` and the variable or list that gets the measured value."""
_CLEARING: Final = re.compile(r"zero|clear|reset|step|optimi|minimi|^update$|deepcopy|^set_", re.IGNORECASE)
"""Names of functions that may clear gradients or update weights."""

_SHOWING: Final = re.compile(r"^(print|log|info|debug|write|add_scalars?|set_postfix)$")


class _Read(NamedTuple):
    """A place where gradients are read to be measured."""

    node: ast.expr
    owner: ast.expr
    """What has the gradients: a tensor, a list of parameters, or the model of ``model.parameters()``."""
    loop: ast.AST | None
    """The loop over the parameters; None if there is none."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each read of gradients that a backward pass has added to those of an earlier one."""
    backwards = [
        each
        for each in source.all_calls
        if last_name(each.func) in _BACKWARD and "super" not in ast.unparse(each.func)[:6]
    ]
    reads = [each for each in _reads(source) if not _is_only_shown(source, each.node)] if backwards else []
    reported: set[int] = set()
    for read in reads:
        function = function_of(source, read.node)
        own = [each for each in backwards if function_of(source, each) is function]
        before = [each for each in own if _is_before(each, read.node)]
        if read.loop is not None and any(encloses(read.loop, each) for each in before):
            continue  # each iteration reads another tensor
        for backward in before[-1:]:
            again = (
                _loop_without_clearing(source, backward, read)
                or _called_again(source, function, read)
                or _earlier_backward(source, backward, read, [e for e in reads if e is not read], before)
            )
            if again is not None and id(backward) not in reported:
                reported.add(id(backward))
                yield Hit(
                    message=f"`{ast.unparse(read.node)}` is the sum of the gradients of all losses so far: nothing "
                    f"clears the gradients of `{ast.unparse(read.owner)}` between the calls of `backward()`.",
                    node=read.node,
                    related=((backward, "adds to the existing gradients"), (again, "again here")),
                )


def _is_only_shown(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a value that is stored in a variable, or an item of one, which is only printed or logged."""
    statement = source.statement_of(node)
    match statement:
        case ast.Assign(targets=[ast.Name() | ast.Subscript() as target]):
            stored = target.value if isinstance(target, ast.Subscript) else target
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append" | "extend", value=stored))):
            pass
        case _:
            return False
    if not isinstance(stored, ast.Name):
        return False
    uses = [
        each
        for each in nodes_in(function_of(source, node), ast.Name)
        if each.id == stored.id and isinstance(each.ctx, ast.Load) and not encloses(statement, each)
    ]
    return bool(uses) and all(_is_shown(source, each) for each in uses)


def _is_shown(source: SourceFile, node: ast.AST) -> bool:
    """Return True for a value that is printed or logged itself, and not a ratio of two."""
    for each in enclosing_nodes(source, node):
        if isinstance(each, ast.BinOp | ast.stmt):
            return False
        if isinstance(each, ast.Call) and _SHOWING.search(last_name(each.func)):
            return True
    return False


def _is_before(first: ast.expr, second: ast.expr) -> bool:
    return (first.lineno, first.col_offset) < (second.lineno, second.col_offset)


def _reads(source: SourceFile) -> Iterator[_Read]:
    """Yield the reads of gradients that are measured, also by a function of the program."""
    for each in source.nodes_of(ast.Attribute):
        if each.attr == "grad" and isinstance(each.ctx, ast.Load) and _is_measured(source, each):
            yield _Read(each, *_owner(source, each.value))
    for name, function in definitions(source).functions.items():
        parameters = [each.arg for each in function.args.args]
        own = [e for e in nodes_in(function, ast.Attribute) if e.attr == "grad" and _is_measured(source, e)]
        owners = {dotted_name(_owner(source, each.value)[0]) for each in own}
        calls = [last_name(each.func) for each in nodes_in(function, ast.Call)]
        if len(owners) != 1 or not owners <= {*parameters} or "backward" in calls or _may_clear(source, function):
            continue
        for call in definitions(source).calls.get(name, []):
            given = passed_argument(source, function, call, next(iter(owners)))
            if given is not None and _is_measured(source, call):
                yield _Read(call, *_owner(source, given))


def _owner(source: SourceFile, node: ast.expr) -> tuple[ast.expr, ast.AST | None]:
    """Return what has a gradient, and the loop over it if the node is the variable of a loop."""
    if not isinstance(node, ast.Name):
        return _iterated(node), None
    for around in enclosing_nodes(source, node):
        for each in (around,) if isinstance(around, ast.For) else getattr(around, "generators", ()):
            if any(e.id == node.id for e in nodes_in(each.target, ast.Name)):
                return _iterated(each.iter), around
    return node, None


def _iterated(node: ast.expr) -> ast.expr:
    match node:
        case ast.Call(func=ast.Attribute(attr="parameters" | "named_parameters" | "items" | "values", value=model)):
            return model
        case ast.Call(
            func=ast.Name(id="enumerate" | "list" | "filter" | "zip" | "reversed" | "tuple"), args=[*_, last]
        ):
            return _iterated(last)
        case _:
            return node


def _is_measured(source: SourceFile, node: ast.expr) -> bool:
    """Return True if a norm, square or copy of gradients is stored, collected or returned."""
    child, parent = node, source.parents.get(id(node))
    while isinstance(parent, ast.expr | ast.comprehension | ast.keyword):
        if not _continues(child, parent):
            return False
        child, parent = parent, source.parents.get(id(parent))
    match parent:
        case ast.Assign(targets=targets):
            return not any(last_name(each) in ("data", "grad", "_grad") for each in targets)
        case ast.AugAssign(op=ast.Add(), target=target):
            is_item = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Subscript)
            return is_item or last_name(target) not in ("data", "grad")
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="add_", value=target))):
            return last_name(target) not in ("data", "grad")  # an update by hand
        case ast.Expr(value=ast.Call(func=func)):
            return last_name(func) in ("append", "extend")
        case _:
            return isinstance(parent, ast.Return)


def _continues(child: Any, parent: Any) -> bool:
    """Return True if an expression computes a norm, a square or a copy of gradients from a part of it."""
    match parent:
        case ast.Call(func=func):
            return last_name(func) in _MEASURING
        case ast.Attribute(attr=attr):
            return attr in _MEASURING
        case ast.comprehension(iter=iterable):
            return iterable is child  # not a condition
        case ast.IfExp(test=test):
            return test is not child
        case ast.BinOp(op=op):
            return not isinstance(op, ast.Sub)
        case _:
            return not isinstance(parent, ast.Compare | ast.JoinedStr | ast.Lambda | ast.UnaryOp)


def _loop_without_clearing(source: SourceFile, backward: ast.Call, read: _Read) -> ast.AST | None:
    """Return the innermost loop around a backward pass, if it has the read too, and clears nothing."""
    loop = next((each for each in enclosing_nodes(source, backward) if isinstance(each, _LOOPS)), None)
    is_same = loop is not None and encloses(loop, read.node)
    return loop if is_same and _adds_up(source, loop, read.owner) else None


def _adds_up(source: SourceFile, loop: Any, owner: ast.expr) -> bool:
    """Return True for a loop that goes on with the same gradients."""
    ends = isinstance(loop, ast.For | ast.While) and any(
        isinstance(each, ast.Break | ast.Return | ast.Raise) for each in loop.body
    )
    return not ends and not _is_replaced(source, loop, owner) and not _may_clear(source, loop)


def _is_replaced(source: SourceFile, node: ast.AST, owner: ast.expr) -> bool:
    """Return True if a part of a program assigns the variable that has the gradients, so that they may be new."""
    while isinstance(owner, ast.Subscript | ast.Attribute) and not dotted_name(owner):
        owner = owner.value
    name = dotted_name(owner)
    if not name:
        return True
    if name.startswith("self."):
        attribute = name.split(".")[1]
        stored = [e for e in definitions(source).attributes.get(attribute, []) if isinstance(e.ctx, ast.Store)]
        return any(getattr(function_of(source, each), "name", "") != "__init__" for each in stored)
    return any(each.id == name.split(".")[0] and isinstance(each.ctx, ast.Store) for each in nodes_in(node, ast.Name))


def _may_clear(source: SourceFile, node: ast.AST, depth: int = 2) -> bool:
    """Return True if code may clear or replace gradients, or update weights, also in functions that it calls."""
    for each in nodes_in(node, ast.Attribute):
        if each.attr in ("grad", "_grad") and not isinstance(each.ctx, ast.Load):
            return True
        if each.attr == "data" and isinstance(each.ctx, ast.Store) and not isinstance(each.value, ast.Subscript):
            return True
    if any(isinstance(each.op, ast.Sub) for each in nodes_in(node, ast.AugAssign)) or _subtracts(node):
        return True
    for call in nodes_in(node, ast.Call):
        name = last_name(call.func)
        if _CLEARING.search(name) and "zeros" not in name and "nonzero" not in name:
            return True
        known = definitions(source).functions.get(name) if depth else None
        if known is not None and known is not node and _may_clear(source, known, depth - 1):
            return True
    return False


def _subtracts(node: ast.AST) -> bool:
    """Return True if code subtracts gradients, such as those before a backward pass."""
    read = {"grad"}
    for assignment in nodes_in(node, ast.Assign):
        if any(each.attr == "grad" for each in nodes_in(assignment.value, ast.Attribute)):
            read |= {each.id for target in assignment.targets for each in nodes_in(target, ast.Name)}
    differences = [each for each in nodes_in(node, ast.BinOp) if isinstance(each.op, ast.Sub)]
    return any(last_name(e) in read for each in differences for e in nodes_in(each, ast.Name, ast.Attribute))


def _called_again(source: SourceFile, function: Any, read: _Read) -> ast.AST | None:
    """Return a call of a function in a loop, or the second of two calls in a block, without clearing in between."""
    if isinstance(function, ast.Module) or definitions(source).functions.get(function.name) is not function:
        return None
    if _is_replaced(source, function, read.owner) or _may_clear(source, function):
        return None
    root = dotted_name(read.owner).split(".")[0]
    is_given = root != "self" and root in [each.arg for each in function.args.args]
    before: list[tuple[ast.stmt, str]] = []
    for call in definitions(source).calls.get(function.name, []):
        owner = passed_argument(source, function, call, root) if is_given else read.owner
        loop = next((each for each in enclosing_nodes(source, call) if isinstance(each, _LOOPS)), None)
        if owner is None:
            continue
        if loop is not None and _adds_up(source, loop, owner):
            return call
        statement = source.statement_of(call)
        if any(
            _is_without_clearing(source, each, statement, owner) for each, text in before if text == ast.unparse(owner)
        ):
            return call
        before.append((statement, ast.unparse(owner)))
    return None


def _is_without_clearing(source: SourceFile, first: ast.stmt, second: ast.stmt, owner: ast.expr) -> bool:
    """Return True if two statements are in one block, and nothing between them clears or replaces gradients."""
    block = source.block(first)
    if first is second or first not in block or second not in block:
        return first is second
    between = block[block.index(first) : block.index(second) + 1]
    return bool(between) and not any(_is_replaced(source, e, owner) or _may_clear(source, e) for e in between)


def _earlier_backward(
    source: SourceFile, backward: ast.Call, read: _Read, others: list[_Read], before: list[ast.Call]
) -> ast.AST | None:
    """Return an earlier backward pass in the block, after which the same gradients were read too."""
    for first in before[:-1]:
        for other in others:
            is_between = _is_before(first, other.node) and _is_before(other.node, backward)
            is_same = ast.unparse(other.owner) == ast.unparse(read.owner)
            statements = source.statement_of(first), source.statement_of(backward)
            if is_between and is_same and _is_without_clearing(source, *statements, read.owner):
                return first
    return None


RULE = Rule(required_words=("backward(", ".grad", "torch"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    inside, edge = torch.rand(64, 2), torch.rand(16, 2)
    losses = [(model(inside) - inside.prod(1, keepdim=True)).pow(2).mean(), model(edge).pow(2).mean()]
    optimizer.zero_grad()
    norms = []
    for loss in losses:
        loss.backward(retain_graph=True)
        norms.append(sum(p.grad.pow(2).sum() for p in model.parameters()).sqrt())
    weights = [max(norms) / norm for norm in norms]
    optimizer.zero_grad()
    sum(weight * loss for weight, loss in zip(weights, losses)).backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD034",
    title="Gradients of single losses are read without clearing",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"    for loss in losses:\n": "    for loss in losses:\n        optimizer.zero_grad()\n"}),
    fix="Clear the gradients before each backward pass, or use torch.autograd.grad.",
    rule=RULE,
)
