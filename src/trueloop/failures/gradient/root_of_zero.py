"""A distance takes the square root of zero: its gradient is infinite, and the weights become NaN.

What you see
    A siamese network or a metric loss trains well for a while. Then the loss is ``nan``, from one update to the next,
    often in the batch that has two equal samples. With distances between all samples of a batch it is ``nan`` after
    the first update.

Why it happens
    The derivative of a root at 0 is infinite. Where two outputs are equal, the chain rule multiplies it by the
    derivative of the square, which is 0, and 0 times infinity is NaN. The loss itself is finite. Equal outputs come
    from equal inputs, from units that are all off, and, on the diagonal, from the distance of a sample to itself. A
    mask does not help: the gradient of what it leaves out is 0, and 0 times infinity is NaN.

Fix
    Add a small number under the root, or use a function of PyTorch, whose gradient at 0 is 0.

        d = ((a - b) ** 2).sum(1).sqrt()  # wrong
        d = (((a - b) ** 2).sum(1) + 1e-8).sqrt()  # right
        d = F.pairwise_distance(a, b)  # right
        d = torch.cdist(z, z)  # right, for all pairs

When this is fine
    - No gradients are needed, as in an evaluation.
    - ``torch.norm``, ``torch.cdist`` and ``F.pairwise_distance``, whose gradient at 0 is defined.
    - The two outputs can never be equal.

How it is detected
    Only the linter finds it, from the source code: a root (``sqrt``, ``** 0.5``) of a sum over one dimension of the
    squares of a difference, without anything added or clamped in between, if both sides are outputs of one network in
    a part of the program that has gradients, or two views of one output, as in ``z[:, None] - z[None]``. Outputs are
    followed through variables, the arguments of functions, and results of ``forward``. Roots of a mean, as in a root
    mean squared error, are not reported.

References
    pytorch/pytorch#2775, "Norm subgradient at 0", https://github.com/pytorch/pytorch/pull/2775
    huggingface/sentence-transformers#4033, "Keep Euclidean similarity gradients finite at zero distance",
    https://github.com/huggingface/sentence-transformers/pull/4033
    torch.nn.functional.pairwise_distance,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.pairwise_distance.html
"""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.possible_values import is_without_gradients, origins, unpacked_call
from trueloop.analysis.queries.reductions import reduction
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LIBRARIES: Final = frozenset(("torch", "th"))
_KEEPING: Final = frozenset((
    "contiguous", "flatten", "float", "normalize", "relu", "reshape", "sigmoid", "squeeze", "tanh", "to", "unsqueeze",
    "view", "expand", "repeat",
))  # fmt: skip
_WITHOUT_GRADIENT: Final = frozenset((
    "argmax", "argmin", "argsort", "cpu", "data", "detach", "item", "numpy", "tolist", "topk",
))  # fmt: skip
_MAX_DEPTH: Final = 4


class _Output(NamedTuple):
    """An output of a network."""

    network: str
    call: ast.Call
    is_view: bool
    """Whether it is an indexed or reshaped view of the output."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each root of a sum of squares that is 0 where two outputs of a network are equal."""
    calls = {id(each.node) for each in source.ops(OpKind.MODEL_CALL, OpKind.FORWARD_CALL) if each.grad is not False}
    for node in source.nodes_of(ast.Call, ast.BinOp):
        summed = _rooted(node)
        if summed is None or is_without_gradients(source, node) or _is_only_read(source, node):
            continue
        difference = _difference(source, summed)
        if difference is None:
            continue
        left, right = _outputs(source, difference.left, calls), _outputs(source, difference.right, calls)
        pair = next(((a, b) for a in left for b in right if _may_be_equal(a, b)), None)
        if pair is not None:
            where = (
                "the distance of a sample to itself is 0"
                if pair[0].call is pair[1].call
                else ("equal outputs have the distance 0")
            )
            yield Hit(
                message=f"`{ast.unparse(node)}` has an infinite gradient at 0, and {where}: the gradients of "
                f"`{pair[0].network}` become NaN, and so do all its weights.",
                node=node,
            )


def _rooted(node: ast.expr) -> ast.expr | None:
    """Return the operand of ``x.sqrt()``, ``torch.sqrt(x)``, ``x ** 0.5`` or ``x.pow(0.5)``."""
    match node:
        case ast.BinOp(op=ast.Pow(), left=inner, right=ast.Constant(value=0.5)):
            return inner
        case ast.Call(func=ast.Attribute(attr="sqrt", value=library), args=[inner]) if last_name(library) in _LIBRARIES:
            return inner
        case ast.Call(func=ast.Attribute(attr="sqrt", value=inner), args=[]):
            return inner
        case ast.Call(func=ast.Attribute(attr="pow", value=inner), args=[*first, ast.Constant(value=0.5)]):
            return first[0] if first else inner
        case _:
            return None


def _is_only_read(source: SourceFile, node: ast.expr) -> bool:
    """Return True if a root is detached or only ranked."""
    around: Any = source.parents.get(id(node))
    if isinstance(around, ast.Attribute):
        return around.attr in _WITHOUT_GRADIENT
    return isinstance(around, ast.Call) and last_name(around.func) in _WITHOUT_GRADIENT


def _difference(source: SourceFile, summed: ast.expr) -> ast.BinOp | None:
    """Return the difference whose squares a value sums over one dimension; None for other values."""
    for each in origins(source, summed, _MAX_DEPTH):
        total = reduction(each, ("sum",))
        if total is None:
            if not isinstance(each, ast.Name):
                return None
            continue
        if total.dim is None:
            return None
        for square in origins(source, total.operand, _MAX_DEPTH):
            base = _squared(square)
            if base is not None:
                values = origins(source, base, _MAX_DEPTH)
                return next((e for e in values if isinstance(e, ast.BinOp) and isinstance(e.op, ast.Sub)), None)
    return None


def _squared(node: ast.expr) -> ast.expr | None:
    match node:
        case ast.BinOp(op=ast.Pow(), left=inner, right=right) if integer(right) == 2:
            return inner
        case ast.BinOp(op=ast.Mult(), left=inner, right=right) if ast.dump(inner) == ast.dump(right):
            return inner
        case ast.Call(func=ast.Attribute(attr="square" | "pow", value=library), args=[inner, *_]) if (
            last_name(library) in _LIBRARIES
        ):
            return inner
        case ast.Call(func=ast.Attribute(attr="square", value=inner), args=[]):
            return inner
        case ast.Call(func=ast.Attribute(attr="pow", value=inner), args=[power]) if integer(power) == 2:
            return inner
        case _:
            return None


def _outputs(
    source: SourceFile, node: ast.expr, calls: set[int], depth: int = 2 * _MAX_DEPTH, *, is_view: bool = False
) -> list[_Output]:
    """Return the outputs of networks that an expression may be, through variables, arguments, views and activations."""
    found: list[_Output] = []
    for each in origins(source, node, _MAX_DEPTH):
        match each:
            case ast.Call() if id(each) in calls and not is_without_gradients(source, each):
                found.append(_Output(ast.unparse(each.func), each, is_view))
            case ast.Call(func=ast.Attribute(attr=name, value=owner), args=arguments) if name in _KEEPING and depth:
                is_function = last_name(owner) in ("F", "functional", "torch")
                inner = arguments[0] if is_function and arguments else owner
                found += _outputs(source, inner, calls, depth - 1, is_view=is_view or name == "unsqueeze")
            case ast.Subscript(value=owner) if depth:
                found += _outputs(source, owner, calls, depth - 1, is_view=True)
            case ast.Name() if depth and (call := unpacked_call(source, each)) is not None:
                if id(call) in calls and not is_without_gradients(source, call):
                    found.append(_Output(ast.unparse(call.func), call, is_view))
            case _:
                pass
    return found


def _may_be_equal(first: _Output, second: _Output) -> bool:
    """Return True for two outputs of one network, and for two views of one output."""
    if first.call is second.call:
        is_pair = len(nodes_in(first.call, ast.Name)) > 2 and len(first.call.args) > 1  # za, zb = net(a, b)
        return is_pair or (first.is_view and second.is_view)
    return first.network == second.network


RULE = Rule(
    required_words=("sqrt|** 0.5|**0.5|pow(0.5|, 0.5)", "sum(", "** 2|**2|pow(|square(| * ", ".backward("), find=find
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)


def distance(a, b):
    return torch.sqrt(((a - b) ** 2).sum(dim=1))


for step in range(20):
    left, right = torch.rand(2, 16, 4)
    same = ((left[:, 0] > 0.5) == (right[:, 0] > 0.5)).float()
    d = distance(net(left), net(right))
    loss = (same * d**2 + (1 - same) * torch.relu(1 - d) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="GRD032",
    title="Root of a distance that can be zero",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {".sum(dim=1))": ".sum(dim=1) + 1e-8)"}),
    fix="Add a small number under the root, or use F.pairwise_distance or torch.cdist.",
    rule=RULE,
)
