"""A focal loss weighs the easy samples most, because it uses the probability instead of one minus the probability.

What you see
    The loss falls to nearly 0 early, while recall of rare classes and hard samples stays poor: worse than with a plain
    cross-entropy.

Why it happens
    A focal loss multiplies the cross-entropy of each sample by ``(1 - p_t) ** gamma``, where ``p_t`` is the probability
    of the right class. Samples that the model already gets right have almost no weight. With ``p_t ** gamma`` they have
    all of it, and a sample that the model gets wrong has hardly any gradient.

Fix
    Use one minus the probability, and the probability is ``exp(-cross_entropy)``:

        ce = F.cross_entropy(logits, y, reduction="none")
        p_t = torch.exp(-ce)
        loss = ((1 - p_t) ** gamma * ce).mean()

When this is fine
    - The factor is the probability of the wrong class, as in ``p ** gamma * (1 - y) * log(1 - p)``.
    - You trust easy samples more on purpose, as some losses for noisy labels do.
    - The power is a term of its own that is not multiplied by a cross-entropy.

How it is detected
    Only the linter finds it, from the source code: a power with an exponent called gamma, or within a function or class
    for a focal loss, is multiplied by a cross-entropy or a logarithm of probabilities, and its base is the probability
    of the target: ``exp(-ce)``, ``exp(log_p)``, probabilities that are gathered at the targets, or the value whose
    logarithm it is multiplied by. It also reports ``exp(ce)``, which is above 1.

References
    Lin et al., "Focal Loss for Dense Object Detection", 2017, arXiv:1708.02002
    torchvision.ops.sigmoid_focal_loss, https://docs.pytorch.org/vision/stable/generated/torchvision.ops.sigmoid_focal_loss.html
"""

import ast
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_GAMMA: Final = re.compile(r"gamma|focus", re.IGNORECASE)
_FOCAL: Final = re.compile(r"focal", re.IGNORECASE)
_ON_PURPOSE: Final = re.compile(r"anti|revers|invers|invert|nois|robust|easy|self_?paced|curriculum", re.IGNORECASE)
_LOSSES: Final = re.compile(r"cross_?entropy|nll_?loss|CrossEntropy|NLLLoss|BCE|(^|_)b?ce($|_|loss)|(^|_)nll($|_)")
_LOG_NAME: Final = re.compile(r"(^|_)log_?(p|pt|p_t|probs?|prob_t|softmax)($|_)")
_PROBABILITY_NAME: Final = re.compile(r"^(p_?t|prob_?t|target_?probs?|probs?_of_target|p_true)$")
_SHAPING: Final = frozenset((
    "gather", "view", "squeeze", "unsqueeze", "reshape", "flatten", "clamp", "clip", "clamp_min", "clamp_max", "float",
    "detach", "contiguous", "sum", "mean", "index_select", "diag", "to", "view_as", "type", "exp_",
))  # fmt: skip
_SHAPING_FUNCTIONS: Final = frozenset(("gather", "clamp", "squeeze", "sum", "mean", "take_along_dim", "clip"))
_unshaped: Final = partial(without_methods, methods=_SHAPING, functions=_SHAPING_FUNCTIONS, items=True)
MAX_DEPTH: Final = 8


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each focal factor that is large for easy samples."""
    for node in source.nodes_of(ast.BinOp, ast.Call):
        power = _power(node)
        if power is None or not _is_focal(source, node, power[1]):
            continue
        base = power[0]
        factors = _factors(source, node)
        if factors and (wrong := _wrong_base(source, base, factors)):
            yield Hit(
                message=f"The focal factor `{ast.unparse(node)}` {wrong}. It should be `(1 - p_t) ** gamma` with "
                "`p_t = exp(-cross_entropy)`, which is near 0 for samples that the model already gets right.",
                node=node,
                fix=_fix(source, base) if wrong == _GROWS else None,
            )


_GROWS: Final = "is largest for samples that the model already gets right"
_ABOVE_ONE: Final = "takes the exponential of the loss without a minus, which is above 1 and no probability"


def _power(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return the base and the exponent of a power; None for other nodes."""
    match node:
        case ast.BinOp(op=ast.Pow(), left=base, right=exponent):
            return base, exponent
        case ast.Call(func=ast.Attribute(attr="pow", value=ast.Name(id="torch")), args=[base, exponent]):
            return base, exponent
        case ast.Call(func=ast.Attribute(attr="pow", value=base), args=[exponent]):
            return base, exponent
        case _:
            return None


def _is_focal(source: SourceFile, node: ast.AST, exponent: ast.expr) -> bool:
    """Return True for a power within a focal loss, by the name of the exponent or of what contains it."""
    names = [each.name for each in source.nodes_of(ast.FunctionDef, ast.ClassDef) if encloses(each, node)]
    if any(map(_ON_PURPOSE.search, names)):
        return False
    return bool(_GAMMA.search(ast.unparse(exponent))) or any(map(_FOCAL.search, names))


def _factors(source: SourceFile, node: ast.AST, depth: int = 0) -> list[ast.expr]:
    """Return the other factors of the products that contain a value, also those with the variable that gets it."""
    found: list[ast.expr] = []
    child: Any = node
    parent: Any = source.parents.get(id(node))
    while True:
        match parent:
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                found.append(right if left is child else left)
            case ast.UnaryOp(op=ast.USub()) | ast.Attribute(attr="detach" | "unsqueeze"):
                pass
            case ast.Call(func=func) if func is child:
                pass
            case _:
                break
        child, parent = parent, source.parents.get(id(parent))
    match parent:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is child and depth < 2:
            function = function_of(source, parent)
            for each in nodes_in(function, ast.Name):
                if each.id == name and isinstance(each.ctx, ast.Load) and each.lineno > parent.lineno:
                    found += _factors(source, each, depth + 1)
        case ast.AugAssign(op=ast.Mult(), target=target, value=value) if value is child:
            found.append(target)
        case _:
            pass
    return found


def _wrong_base(source: SourceFile, base: ast.expr, factors: list[ast.expr]) -> str:
    """Return what is wrong with the base of a focal factor; "" if it is right or unknown."""
    logs = [each for each in factors if _log_sign(source, each, 0)]
    if not logs:
        return ""
    values = [base, *possible_values(source, base)]
    inner = next((each for each in map(_complement, values) if each is not None), base)
    if _exponential_sign(source, inner, 0) < 0:
        return _ABOVE_ONE
    if _is_target_probability(source, base, 0):
        return _GROWS
    same = {ast.unparse(each) for each in values}
    for each in logs:
        for logarithm in _logarithms(source, each, 0):
            if ast.unparse(_without_epsilon(logarithm)) in same:
                return _GROWS
    return ""


def _complement(node: ast.expr) -> ast.expr | None:
    """Return ``p`` in ``1 - p``; None for other expressions."""
    match node:
        case ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1 | 1.0), right=inner):
            return inner
        case _:
            return None


def _log_sign(source: SourceFile, node: ast.expr, depth: int) -> int:
    """Return 1 for a log-probability, -1 for a cross-entropy, which is a negative one; 0 for anything else."""
    node = _unshaped(node)
    match node:
        case _ if depth > MAX_DEPTH:
            return 0
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_log_sign(source, inner, depth + 1)
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            signs = {_log_sign(source, each, depth + 1) for each in (left, right)} - {0}
            number = any(isinstance(each, ast.UnaryOp) or ast.unparse(each).startswith("-") for each in (left, right))
            return 0 if len(signs) != 1 else signs.pop() * (-1 if number and _negative(left, right) else 1)
        case ast.Call(func=func):
            return _log_sign_of_call(source, node, func, depth)
        case ast.Name() | ast.Attribute():
            return _log_sign_of_variable(source, node, depth)
        case _:
            return 0


def _negative(left: ast.expr, right: ast.expr) -> bool:
    """Return True if one side of a product is a negative number."""
    return any(isinstance(e, ast.UnaryOp) and isinstance(e.operand, ast.Constant) for e in (left, right))


def _log_sign_of_call(source: SourceFile, node: ast.Call, func: ast.expr, depth: int) -> int:
    name = last_name(func)
    if name in ("log_softmax", "logsigmoid", "log", "LogSoftmax"):
        return 1
    made = " ".join([name, *(ast.unparse(each) for each in possible_values(source, func))])
    if _LOSSES.search(made):
        return -1
    signs = {_log_sign(source, each, depth + 1) for each in possible_values(source, node)}
    return signs.pop() if len(signs) == 1 else 0


def _log_sign_of_variable(source: SourceFile, node: ast.expr, depth: int) -> int:
    values = possible_values(source, node)
    if values:
        signs = {_log_sign(source, each, depth + 1) for each in values}
        return signs.pop() if len(signs) == 1 else 0
    name = last_name(node).lower()
    return 1 if _LOG_NAME.search(name) else -1 if _LOSSES.search(name) else 0


def _exponential_sign(source: SourceFile, node: ast.expr, depth: int) -> int:
    """Return 1 for ``exp(log_p)`` or ``exp(-ce)``, -1 for ``exp(ce)`` or ``exp(-log_p)``; 0 for anything else."""
    node = _unshaped(node)
    match node:
        case _ if depth > MAX_DEPTH:
            return 0
        case ast.Call(func=ast.Attribute(attr="exp", value=ast.Name(id="torch")), args=[inner]):
            return _log_sign(source, inner, 0)
        case ast.Call(func=ast.Attribute(attr="exp", value=inner), args=[]):
            return _log_sign(source, inner, 0)
        case ast.Name():
            signs = {_exponential_sign(source, each, depth + 1) for each in possible_values(source, node)}
            return signs.pop() if len(signs) == 1 else 0
        case _:
            return 0


def _is_target_probability(source: SourceFile, node: ast.expr, depth: int) -> bool:
    """Return True for the probability of the right class of each sample."""
    if depth > MAX_DEPTH:
        return False
    gathered = _is_gathered(node) and _is_probability(source, _unshaped(node), 0)
    if gathered or _exponential_sign(source, node, 0) > 0 or _selects(source, node) > 0:
        return True
    shape = _unshaped(node)
    values = possible_values(source, shape)
    if values:
        return all(_is_target_probability(source, each, depth + 1) for each in values)
    if isinstance(shape, ast.Name):
        return bool(_PROBABILITY_NAME.match(shape.id.lower()))
    return shape is not node and _is_target_probability(source, shape, depth + 1)


def _is_gathered(node: ast.expr) -> bool:
    """Return True if a value is gathered at indices, or multiplied by a one-hot target and added up."""
    for each in nodes_in(node, ast.Call, ast.Subscript):
        is_pick = isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Tuple) and len(each.slice.elts) == 2
        picks_all = is_pick and any(isinstance(e, ast.Slice) for e in each.slice.elts)  # type: ignore[union-attr]
        if (is_pick and not picks_all) or (isinstance(each, ast.Call) and last_name(each.func) == "gather"):
            return True
    return False


def _is_probability(source: SourceFile, node: ast.expr, depth: int) -> bool:
    """Return True for the result of a softmax or sigmoid."""
    node = _unshaped(node)
    if isinstance(node, ast.Call) and last_name(node.func) in ("softmax", "sigmoid", "Softmax"):
        return True
    values = possible_values(source, node) if depth <= MAX_DEPTH else []
    return bool(values) and all(_is_probability(source, each, depth + 1) for each in values)


def _selects(source: SourceFile, node: ast.expr) -> int:
    """Return 1 for ``p * y + (1 - p) * (1 - y)``, the probability of the target, -1 for the reverse; else 0."""
    match _unshaped(node):
        case ast.BinOp(op=ast.Add(), left=ast.BinOp(op=ast.Mult()) as first, right=ast.BinOp(op=ast.Mult()) as second):
            sides = (first.left, first.right, second.left, second.right)
        case ast.Call(func=func, args=[test, first, second]) if last_name(func) == "where":
            inner = _complement(second)
            is_one = bool(re.search(r"== ?1|> ?0|bool\(\)", ast.unparse(test))) or isinstance(test, ast.Name)
            is_target = inner is not None and ast.unparse(inner) == ast.unparse(first) and is_one
            return int(is_target and _is_probability(source, first, 0))
        case _:
            return 0
    plain = [each for each in sides if _complement(each) is None]
    inverted = {ast.unparse(inner) for each in sides if (inner := _complement(each)) is not None}
    if len(plain) != 2 or {ast.unparse(each) for each in plain} != inverted:
        return 0
    if not any(_is_probability(source, each, 0) for each in plain):
        return 0
    return 1 if (_complement(sides[0]) is None) == (_complement(sides[1]) is None) else -1


def _logarithms(source: SourceFile, node: ast.expr, depth: int) -> Iterator[ast.expr]:
    """Yield what a factor takes the logarithm of."""
    for each in nodes_in(node, ast.Call):
        if last_name(each.func) == "log":
            yield each.args[0] if each.args else each.func.value  # type: ignore[attr-defined]
    if depth < 2:
        for each in possible_values(source, _unshaped(node)):
            yield from _logarithms(source, each, depth + 1)


def _without_epsilon(node: ast.expr) -> ast.expr:
    """Return ``p`` in ``p + eps`` and ``p.clamp(min=eps)``."""
    match node:
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            small = isinstance(right, ast.Constant) or re.search(r"eps|smooth|tiny", dotted_name(right) or "")
            return left if small else node
        case ast.Call(
            func=ast.Attribute(attr="clamp" | "clip" | "clamp_min", value=ast.Name(id="torch")), args=[p, *_]
        ):
            return p
        case ast.Call(func=ast.Attribute(attr="clamp" | "clip" | "clamp_min", value=inner)):
            return inner
        case _:
            return node


def _fix(source: SourceFile, base: ast.expr) -> Fix:
    text = source.text.segment(base)
    text = text if isinstance(base, ast.Name | ast.Call) else f"({text})"
    parent = source.parents.get(id(base))
    is_argument = isinstance(parent, ast.Call) and base in parent.args
    return Fix(
        (source.text.replace(base, f"1 - {text}" if is_argument else f"(1 - {text})"),),
        safe=False,
        description="Use one minus the probability",
    )


RULE = Rule(required_words=("gamma|focal|Focal|focus", "**|pow(", "torch", "exp|softmax|sigmoid|log"), find=find)

BAD = """
import torch
from torch import nn
from torch.nn import functional as F


class FocalLoss(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, labels):
        ce = F.cross_entropy(logits, labels, reduction="none")
        p_t = torch.exp(-ce)
        return (p_t**self.gamma * ce).mean()


torch.manual_seed(0)
x = torch.randn(256, 8)
y = (x[:, 0] > 1).long()
model = nn.Linear(8, 2)
criterion = FocalLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for step in range(20):
    optimizer.zero_grad()
    criterion(model(x), y).backward()
    optimizer.step()
print("recall", (model(x).argmax(1)[y == 1] == 1).float().mean())
"""

FAILURE = Failure(
    code="LOS035",
    title="Focal loss weighs the easy samples most",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"(p_t**self.gamma * ce)": "((1 - p_t) ** self.gamma * ce)"}),
    fix="Multiply by `(1 - p_t) ** gamma`, with `p_t = torch.exp(-ce)`.",
    rule=RULE,
)
