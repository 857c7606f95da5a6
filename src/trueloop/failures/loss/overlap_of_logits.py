"""A dice or IoU loss gets the raw outputs of a model, although it needs probabilities.

What you see
    The loss is negative, above 1, or jumps by orders of magnitude, and the predicted masks are empty or full.

Why it happens
    Such a loss divides the overlap by a sum of both masks. With probabilities it is between 0 and 1. Raw outputs are of
    any size and sign: the sum can be 0 or negative, and large outputs everywhere lower the loss without any better
    mask. Nothing raises an error, since raw outputs are numbers like probabilities.

Fix
    Apply a sigmoid, or a softmax over the classes, to what the loss gets:

        loss = dice_loss(torch.sigmoid(model(images)), masks)

When this is fine
    - The loss, or the ``forward`` of the model, applies a sigmoid or softmax itself.
    - It is no loss but a metric, which gets masks after a threshold.

How it is detected
    Only the linter finds it, from the source code: a function, or the ``forward`` of a module, multiplies its two
    arguments, adds the products up and divides by sums, its name or variables mention dice, IoU, Jaccard, Tversky, F1
    or an intersection, and it contains no sigmoid, softmax, threshold or other activation. It is called with the output
    of a model that ends in a linear layer or convolution, or that also goes into a loss for logits, and the program
    minimises the result.

References
    Milletari et al., "V-Net: Fully Convolutional Neural Networks for Volumetric Medical Image Segmentation", 2016,
    arXiv:1606.04797
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.activations import VIEWS, is_affine
from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of, without_conversions
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.minimised_values import minimised
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_OVERLAP: Final = re.compile(
    r"dice|iou|jaccard|tversky|f1|fbeta|f_beta|inter(\b|_|sect)|overlap|\btps?\b", re.IGNORECASE
)
_BOUNDED: Final = re.compile(
    r"sigmoid|softmax|expit|activat|\bact\b|tanh|from_logits|argmax|normali[sz]e|threshold|round|exp\(|relu|sqrt|norm\("
    r"|clamp_?\((\w+, )?(min=)?0(\.0)?, (max=)?1|clip|[<>]=?\s*(0|self\.t|t)",
    re.IGNORECASE,
)
"""Text of a function that may make probabilities or masks of its arguments."""
_LOGIT_LOSSES: Final = re.compile(r"with_?logits|(?<!binary_)cross_entropy|CrossEntropy|log_softmax", re.IGNORECASE)
_SHAPING: Final = frozenset((
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "contiguous", "permute", "transpose", "float", "to", "double",
    "expand", "type", "ravel",
))  # fmt: skip
MAX_DEPTH: Final = 6


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each dice or similar loss that gets raw outputs."""
    losses = {each.name: _parent_class(source, each) for each in source.nodes_of(ast.FunctionDef) if _is_overlap(each)}
    raw = _raw_outputs(source) if losses else {}
    for name, owner in losses.items():
        for call in _calls(source, name, owner):
            for argument in (*call.args, *(each.value for each in call.keywords)):
                layer = _raw(source, argument, raw, 0)
                if layer is not None and id(call) in minimised(source):
                    text = source.text.segment(argument)
                    yield Hit(
                        message=f"`{ast.unparse(call.func)}` needs probabilities, but `{text}` are raw outputs of a "
                        "model, of any size and sign: apply a sigmoid or softmax to them first.",
                        node=call,
                        related=((layer, "the raw outputs"),),
                        fix=Fix(
                            (source.text.replace(argument, f"torch.sigmoid({text})"),),
                            safe=False,
                            description="Apply a sigmoid",
                        ),
                    )
                    break


def _parent_class(source: SourceFile, function: ast.FunctionDef) -> ast.ClassDef | None:
    parent = source.parents.get(id(function))
    return parent if isinstance(parent, ast.ClassDef) else None


def _calls(source: SourceFile, name: str, owner: ast.ClassDef | None) -> list[ast.Call]:
    """Return the calls of a function, or those of the instances of a class with this method."""
    if name not in ("forward", "__call__"):
        return list(definitions(source).calls.get(name, ())) if name in definitions(source).functions else []
    found: list[ast.Call] = []
    for call in source.all_calls:
        func = call.func
        made = [func] if isinstance(func, ast.Call) else possible_values(source, func)
        if owner is not None and any(isinstance(e, ast.Call) and last_name(e.func) == owner.name for e in made):
            found.append(call)
    return found


def _is_overlap(function: ast.FunctionDef) -> bool:
    """Return True for a function that divides an overlap of its arguments by their sums, without an activation."""
    parameters = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
    if len(parameters) < 2 or not nodes_in(function, ast.Div):
        return False
    body = " ".join(ast.unparse(each) for each in function.body if not _is_text(each))
    if _BOUNDED.search(body) or not _OVERLAP.search(f"{function.name} {body}") or "sum" not in body:
        return False
    aliases = {name: name for name in parameters[:2]}
    for each in nodes_in(function, ast.Assign):
        for target, value in assigned_pairs(each):
            base = last_name(_unshaped(value))
            if isinstance(target, ast.Name) and base in aliases:
                aliases[target.id] = aliases[base]
    for each in nodes_in(function, ast.BinOp):
        if isinstance(each.op, ast.Mult):
            sides = {aliases.get(last_name(_unshaped(side)), "") for side in (each.left, each.right)}
            if sides == set(parameters[:2]):
                return True
    return False


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _unshaped(node: ast.expr) -> ast.expr:
    """Return the value that an expression reshapes, converts or indexes."""
    node = without_conversions(node)
    while True:
        match node:
            case ast.Call(
                func=ast.Attribute(attr="flatten" | "squeeze" | "reshape", value=ast.Name(id="torch")), args=args
            ):
                node = args[0]
            case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _SHAPING:
                node = without_conversions(inner)
            case ast.Subscript(value=inner):
                node = without_conversions(inner)
            case _:
                return node


def _raw_outputs(source: SourceFile) -> dict[int, Any]:
    """Return the id of each model call whose result comes directly from a linear layer or convolution -> that layer."""
    found: dict[int, Any] = {}
    for call in source.ops(OpKind.MODEL_CALL):
        origin = None if call.result is None else call.result.origin(VIEWS, items=True)
        if origin is not None and is_affine(origin):
            found[id(call.node)] = origin.node
    return found


def _raw(source: SourceFile, node: ast.expr, raw: dict[int, Any], depth: int) -> Any:
    """Return the layer or the loss for logits that shows that a value is a raw output; None if none does."""
    node = _unshaped(node)
    if depth > MAX_DEPTH:
        return None
    if id(node) in raw:
        return raw[id(node)]
    if isinstance(node, ast.Name) and (loss := _loss_for_logits(source, node)) is not None:
        return loss
    found = [_raw(source, each, raw, depth + 1) for each in possible_values(source, node)]
    return found[0] if found and all(each is not None for each in found) else None


def _loss_for_logits(source: SourceFile, node: ast.Name) -> ast.Call | None:
    """Return the call of a loss for logits that gets the same variable with the same value."""
    values = {id(each) for each in possible_values(source, node)}
    for each in nodes_in(function_of(source, node), ast.Call):
        first = _unshaped(each.args[0]) if each.args else None
        if isinstance(first, ast.Name) and first.id == node.id:
            made = [last_name(each.func), *(ast.unparse(e) for e in possible_values(source, each.func))]
            same = {id(e) for e in possible_values(source, first)} == values
            if same and values and any(map(_LOGIT_LOSSES.search, made)):
                return each
    return None


RULE = Rule(
    required_words=("dice|Dice|iou|IoU|jaccard|Jaccard|tversky|Tversky|f1|F1|inter", "sum", "backward|_step"), find=find
)

BAD = """
import torch
from torch import nn


def dice_loss(predicted, masks, smooth=1.0):
    overlap = (predicted * masks).sum()
    return 1 - (2 * overlap + smooth) / (predicted.sum() + masks.sum() + smooth)


torch.manual_seed(0)
images = torch.rand(32, 3, 8, 8)
masks = (images.mean(1, keepdim=True) > 0.5).float()
model = nn.Conv2d(3, 1, 3, padding=1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    rows = torch.randperm(32)[:8]
    optimizer.zero_grad()
    loss = dice_loss(model(images[rows]), masks[rows])
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""

FAILURE = Failure(
    code="LOS036",
    title="Dice or IoU loss gets raw outputs",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"dice_loss(model(images[rows])": "dice_loss(torch.sigmoid(model(images[rows]))"}),
    fix="Apply a sigmoid or softmax to the outputs before the loss.",
    rule=RULE,
)
