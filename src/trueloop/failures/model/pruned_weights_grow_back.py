"""Weights are pruned once by a mask, and the training that follows makes them non-zero again.

What you see
    After fine-tuning the model has none of the sparsity that it was pruned to. Its accuracy is good, since it is a
    dense model again.

Why it happens
    A weight of zero has a gradient as any other. ``weight.data *= mask`` sets values once, and the next
    ``optimizer.step()`` changes them; momentum and weight decay do so even without a gradient.

Fix
    Apply the mask after each step, or let PyTorch apply it in each forward pass.

        optimizer.step()
        with torch.no_grad():
            layer.weight.mul_(mask)

        torch.nn.utils.prune.l1_unstructured(layer, "weight", amount=0.8)

When this is fine
    - The weights are pruned after the last training, or again at its end.
    - Gradients are masked as well, by a hook or by hand, or the forward pass multiplies by the mask.
    - Weights are to grow back, as in dense-sparse-dense training: name it so.

How it is detected
    Only the linter finds it, from the source code: weights are multiplied by a mask, or set to zero where a magnitude
    or score is below a threshold, in a statement before one that trains, or in one epoch of it; nothing prunes after
    the training, and neither the code of the training nor a ``forward`` has a mask. Programs with hooks,
    ``torch.nn.utils.prune``, masked gradients, or a copy or reload of the weights after the pruning are not judged.

References
    Han et al., "Learning both Weights and Connections for Efficient Neural Networks", 2015,
    https://arxiv.org/abs/1506.02626
    torch.nn.utils.prune, https://docs.pytorch.org/tutorials/intermediate/pruning_tutorial.html
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.possible_values import enclosing_nodes, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_WANTED: Final = re.compile(
    r"register_\w*hook|prune\.|utils\.prune|parametriz|dsd|dense_?sparse|re_?dens|regrow|grow|rigl"
    r"|\.grad(\.data)?(\[.*\])?\s*(\*=|=(?!=|\s*None)|\.mul_|\.masked_fill_)|(linear|conv\d?d)\(\w+, [^)\n]* \* ",
    re.IGNORECASE,
)
"""Text of programs that keep weights at zero in another way, or let them grow on purpose."""
_MASK: Final = re.compile(r"mask|msk|prun|spars|(^|_)keep", re.IGNORECASE)
_OTHER_MASK: Final = re.compile(
    r"(attn|attention|pad|padding|src|tgt|key|causal|loss|input|token)\w*mask", re.IGNORECASE
)
_MAGNITUDE: Final = re.compile(
    r"abs\(|thresh|thr\b|score|import|salien|quantile|topk|kthvalue|magnitude|norm|rand", re.I
)
_CONVERSIONS: Final = frozenset(
    ("float", "to", "type", "type_as", "double", "half", "view", "reshape", "unsqueeze", "int")
)
_COMPARISONS: Final = frozenset(("gt", "ge", "lt", "le", "greater", "less", "greater_equal", "less_equal"))
_COPIES: Final = frozenset(("deepcopy", "load_state_dict", "clone"))
_WORDS: Final = re.compile(r"mask|msk|prun|spars|abs\(", re.IGNORECASE)
_MAX_DEPTH: Final = 4


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each pruning that a later training undoes."""
    masking = [each for each in source.nodes_of(ast.AugAssign, ast.Assign, ast.Call) if _masks(source, each)]
    if not masking or _WANTED.search(source.text.source):
        return
    names = [getattr(function_of(source, each), "name", "") for each in masking]
    forwards = [each for each in source.nodes_of(ast.FunctionDef) if each.name == "forward"]
    if any(name in ("forward", "__init__", "__call__", "step") or "init" in name for name in names):
        return
    if any(_mentions_mask(nodes_in(each, ast.Name, ast.Attribute)) for each in forwards):
        return
    ids = {id(each) for each in masking}
    for block in [source.tree.body, *(each.body for each in source.nodes_of(ast.FunctionDef))]:
        hit = _undone(source, list(_flat(block)), ids)
        if hit is not None:
            yield hit


def _undone(source: SourceFile, statements: Sequence[ast.stmt], masking: set[int]) -> Hit | None:
    """Return a hit if a statement of a block prunes, a later one trains, and none prunes after it."""
    pruning: list[tuple[int, Any]] = []
    training: list[tuple[int, ast.stmt]] = []
    for number, statement in enumerate(statements):
        parts = list(_run(source, statement))
        pruned = next((each for each in parts if id(each) in masking), None)
        trains = any(isinstance(each, ast.Call) and last_name(each.func) == "backward" for each in parts)
        if trains and pruned is not None:
            once = _pruned_once(source, statement, masking)
            return None if once is None else _hit(once, statement)
        if trains and _mentions_mask(parts):
            return None
        if pruned is not None:
            pruning.append((number, pruned))
        elif trains:
            training.append((number, statement))
    if not pruning or not training or pruning[-1][0] > training[-1][0]:
        return None
    number, node = pruning[-1]
    later = next(each for place, each in training if place > number)
    between = [each for statement in statements[number : training[-1][0]] for each in _run(source, statement)]
    if any(isinstance(each, ast.Call) and last_name(each.func) in _COPIES for each in between):
        return None
    return _hit(node, later)


def _hit(node: Any, training: ast.stmt) -> Hit:
    return Hit(
        message=f"`{ast.unparse(node)}` sets weights to zero once: the training that follows makes them non-zero "
        "again.",
        node=node,
        related=((training, "trained without the mask"),),
    )


def _pruned_once(source: SourceFile, loop: ast.stmt, masking: set[int]) -> Any:
    """Return what prunes in ``if epoch == 5`` within a loop over epochs that trains; None if it runs again."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
        return None
    once, rest = list[ast.AST](), list[ast.AST]()
    for each in loop.body:
        match each:
            case ast.If(
                test=ast.Compare(left=ast.Name(id=name), ops=[ast.Eq()], comparators=[ast.Name() | ast.Constant()]),
                orelse=[],
            ) if name == loop.target.id:
                once += _run(source, each)
            case _:
                rest += _run(source, each)
    is_plain = not _mentions_mask(rest) and not any(id(each) in masking for each in rest)
    trains = any(isinstance(each, ast.Call) and last_name(each.func) == "backward" for each in once)
    return next((each for each in once if id(each) in masking), None) if is_plain and not trains else None


def _flat(block: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a block, with those inside of ``with`` and of an ``if`` without ``else``."""
    for each in block:
        if isinstance(each, ast.With) or (isinstance(each, ast.If) and not each.orelse):
            yield from _flat(each.body)
        elif not isinstance(each, ast.FunctionDef | ast.ClassDef):
            yield each


def _run(source: SourceFile, statement: ast.AST, depth: int = _MAX_DEPTH) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, and those of the functions of the program that it calls."""
    for each in nodes_in(statement, ast.expr, ast.stmt):
        yield each
        function = called_function(source, each) if isinstance(each, ast.Call) and depth else None
        for inner in function.body if function is not None else ():
            yield from _run(source, inner, depth - 1)


def _mentions_mask(parts: Sequence[ast.AST]) -> bool:
    """Return True if a name in the code of a training is that of a mask of weights."""
    names = {last_name(each) for each in parts if isinstance(each, ast.Name | ast.Attribute)}
    return any(_MASK.search(name) and not _OTHER_MASK.search(name) for name in names)


def _masks(source: SourceFile, node: ast.AST) -> bool:
    """Return True for code that sets some weights of a layer to zero."""
    target: Any = None
    value: Any = None
    is_mask = _is_mask
    match node:
        case (
            ast.AugAssign(target=target, op=ast.Mult(), value=value)
            | ast.Call(func=ast.Attribute(attr="mul_", value=target), args=[value])
            | ast.Call(func=ast.Attribute(attr="masked_fill_", value=target), args=[value, ast.Constant(value=0)])
            | ast.Assign(targets=[ast.Subscript(value=target, slice=value)], value=ast.Constant(value=0))
        ):
            pass
        case (
            ast.Call(func=ast.Attribute(attr="copy_", value=target), args=[value])
            | ast.Assign(targets=[ast.Attribute() as target], value=value)
        ):
            is_mask = _is_masked
        case _:
            return False
    return _is_weight(source, target) and is_mask(source, value)


def _is_masked(source: SourceFile, value: ast.expr) -> bool:
    """Return True for ``weight * mask`` and ``torch.where(weight.abs() > t, weight, 0)``."""
    match value:
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            return _is_mask(source, left) or _is_mask(source, right)
        case ast.Call(args=[condition, _, _]) if last_name(value.func) == "where":
            return _is_mask(source, condition)
        case ast.Call(func=func, args=[inner]) if last_name(func) == "Parameter":
            return _is_masked(source, inner)
        case ast.Call(func=ast.Attribute(attr="masked_fill"), args=[condition, ast.Constant(value=0)]):
            return _is_mask(source, condition)
        case _:
            return False


def _is_weight(source: SourceFile, node: ast.expr) -> bool:
    """Return True for ``layer.weight``, ``p.data``, and variables that hold them."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("weight", "data") or node.attr.endswith("_weight")
    if not isinstance(node, ast.Name):
        return False
    for each in enclosing_nodes(source, node):
        if isinstance(each, ast.For) and any(name.id == node.id for name in nodes_in(each.target, ast.Name)):
            return "parameters(" in ast.unparse(each.iter)
    return any(isinstance(each, ast.Attribute) and _is_weight(source, each) for each in possible_values(source, node))


def _is_mask(source: SourceFile, node: ast.expr, depth: int = _MAX_DEPTH) -> bool:
    """Return True for a comparison of magnitudes or scores, and for a variable called a mask."""
    match node:
        case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _CONVERSIONS:
            return _is_mask(source, inner, depth)
        case ast.UnaryOp(op=ast.Invert(), operand=inner):
            return _is_mask(source, inner, depth)
        case ast.Compare() | ast.Call() if isinstance(node, ast.Compare) or last_name(node.func) in _COMPARISONS:
            names = nodes_in(node, ast.Name)
            values = [ast.unparse(value) for each in names for value in possible_values(source, each)]
            return any(_MAGNITUDE.search(text) for text in (ast.unparse(node), *values))
        case ast.Name() | ast.Attribute() | ast.Subscript():
            values = possible_values(source, node) if depth else []
            if values and all(isinstance(each, ast.Compare | ast.Call) for each in values):
                is_named = bool(_MASK.search(last_name(node)))
                return any(_is_mask(source, e, depth - 1) or (is_named and isinstance(e, ast.Call)) for e in values)
            return bool(_MASK.search(last_name(node))) and not _OTHER_MASK.search(last_name(node))
        case _:
            return False


RULE = Rule(
    required_words=("backward(", "*=|.mul_(|masked_fill|] = 0| * |where(", "weight|.data|parameters()", _WORDS),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(epochs):
    for epoch in range(epochs):
        for rows in torch.randperm(256).split(32):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()


train(3)
weight = model[0].weight
mask = weight.detach().abs() > weight.detach().abs().median()
weight.data *= mask
train(3)
print(f"{(weight == 0).float().mean().item():.0%} of the weights are zero")
"""

FAILURE = Failure(
    code="MDL038",
    title="Pruned weights grow back",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"weight.data *= mask\ntrain(3)\n": "train(3)\nweight.data *= mask\n"}),
    fix="Apply the mask after each step, or use torch.nn.utils.prune.",
    rule=RULE,
)
