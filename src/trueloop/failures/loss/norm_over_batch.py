"""The gradient penalty takes one norm over the whole batch instead of one for each sample.

What you see
    The critic hardly reacts to its inputs, and the generator gets small gradients and learns slowly. The result depends
    on the batch size; another penalty coefficient does not help.

Why it happens
    The penalty pulls the norm of the critic's gradient for each sample to 1. ``gradients.norm(2)`` without ``dim`` is
    the root of the sum over all samples: pulled to 1, each sample's norm becomes 1 / sqrt(batch size). The result is a
    single number, so a mean after it changes nothing and raises no error. ``norm(2, dim=0)`` is one number for each
    feature, over all samples. The mean of the norms may be 1 while that of every sample is not. For images,
    ``norm(2, dim=1)`` is one number for each pixel, over its channels; for signals of one channel, the norm of each
    value alone.

Fix
    Flatten each sample, and take the norm along that dimension.

        norms = gradients.flatten(1).norm(2, dim=1)
        penalty = ((norms - 1) ** 2).mean()

When this is fine
    - ``dim`` is that of a sample, or the squares are summed over the dimensions of a sample.
    - The gradient is one with respect to the parameters of a model, as in sharpness penalties.
    - The penalty is the sum of squares, as in R1, without a number that the norm shall reach.

How it is detected
    Only the linter finds it: the square of a norm minus a number, where the norm has no ``dim`` or ``dim=0``, or is
    averaged before the number is subtracted, and is that of the result of ``torch.autograd.grad(...,
    create_graph=True)`` for inputs. It follows variables, functions, ``view`` and indexing. A norm along another
    dimension is reported if the inputs are mixed with factors of four dimensions, or ``dim=1`` of three, so are images,
    signals or texts, and not flattened.

References
    Gulrajani et al., "Improved Training of Wasserstein GANs", 2017, arXiv:1704.00028
    torch.autograd.grad, https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.possible_values import computed_from, default_of, origins, possible_values, unpacked_call
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, integer
from trueloop.failures.failure import Failure, Rule, Severity, changed

_NORMS: Final = frozenset(("norm", "vector_norm"))
_VIEWS: Final = frozenset(("view", "reshape", "flatten", "float", "squeeze", "to", "contiguous"))
_SAME_SHAPE: Final = frozenset(("float", "to", "contiguous"))
_SHAPED: Final = frozenset(("rand", "empty", "view", "reshape", "expand", "FloatTensor", "new_empty", "repeat", "size"))
_PER_PIXEL: Final = "taken along one dimension of images, one number for each pixel"
_PER_STEP: Final = "taken along dimension 1 of samples that have several, one number for each pixel or step"
_PARAMETERS: Final = re.compile(r"param|weight|theta|\bw\b", re.IGNORECASE)
_LIBRARIES: Final = frozenset(("torch", "linalg", "LA", "F", "functional"))
_MAX_DEPTH: Final = 10


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each penalty that pulls the norm of a batch of gradients to a number."""
    reported: set[int] = set()
    for difference in _squared_differences(source):
        for norm in origins(source, difference):
            gradients, reason = _normed(source, norm) or (None, "")
            if gradients is None or id(norm) in reported:
                continue
            sizes = {_PER_PIXEL: (4,), _PER_STEP: (3, 4)}.get(reason, ())
            gradient = _gradient_call(source, gradients, _MAX_DEPTH, _SAME_SHAPE if sizes else _VIEWS)
            if gradient is not None and (not sizes or _is_of_images_or_signals(source, gradient, sizes)):
                reported.add(id(norm))
                yield Hit(
                    message=f"`{ast.unparse(norm)}` is {reason}, so the penalty does not "
                    "pull the norm of each sample's gradient to its target. Take one for each sample.",
                    node=norm,
                    related=((gradient, "the gradients of the batch"),),
                    fix=_fix(source, norm, gradients),
                )


def _squared_differences(source: SourceFile) -> Iterator[ast.expr]:
    """Yield a of each ``(a - 1) ** 2``, in the ways to write a square; of ``mse_loss(a, torch.ones_like(a))``, too."""
    for node in source.nodes_of(ast.BinOp, ast.Call):
        base: Any = None
        match node:
            case ast.BinOp(op=ast.Pow(), left=base, right=ast.Constant(value=2)):
                pass
            case ast.Call(func=ast.Attribute(attr="pow" | "square", value=owner), args=args):
                base = args[0] if args and last_name(owner) == "torch" else owner
            case ast.Call(func=func, args=[base, ast.Call(func=ones)]) if last_name(func) == "mse_loss":
                if last_name(ones).startswith("ones"):
                    yield base
                continue
            case _:
                continue
        for value in origins(source, base, 2):
            yield from _minus_target(value)


def _minus_target(value: ast.expr) -> Iterator[ast.expr]:
    """Yield a of ``a - 1``, ``1 - a`` and ``relu(a - 1)``."""
    match value:
        case ast.Call(args=[inner, *_]) if last_name(value.func) in ("relu", "clamp", "max", "maximum"):
            yield from _minus_target(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr="relu" | "clamp")):
            yield from _minus_target(inner)
        case ast.BinOp(op=ast.Sub(), left=left, right=right):
            yield from (left, right)
        case _:
            pass


def _normed(source: SourceFile, node: ast.expr) -> tuple[ast.expr, str] | None:
    """Return x of ``x.norm(2)``, ``torch.norm(x, dim=0)`` and ``x.pow(2).sum().sqrt()``, and what the norm is.

    None for a norm along the dimensions of a sample, except for the mean of such norms.
    """
    match node:
        case ast.Call(func=ast.Attribute(attr=name, value=owner)) if name in _NORMS:
            rest = node.args[2:] if last_name(owner) in _LIBRARIES else node.args[1:]
            return _reduced(_norm_of(node), node, rest)
        case ast.Call(func=ast.Attribute(attr="sqrt", value=owner), args=args):
            return _sum_of_squares(source, args[0] if args else owner)
        case ast.BinOp(left=total, op=ast.Pow(), right=ast.Constant(value=0.5)):
            return _sum_of_squares(source, total)
        case ast.Call(func=ast.Attribute(attr="mean", value=owner), args=arguments):
            averaged = arguments[0] if last_name(owner) == "torch" and arguments else owner
            gradients = next((found for each in origins(source, averaged) if (found := _norm_of(each))), None)
            return (gradients, "the mean of the norms of all samples") if gradients is not None else None
        case _:
            return None


def _norm_of(node: ast.expr) -> ast.expr | None:
    """Return x of ``x.norm(2, dim=1)`` and ``torch.linalg.vector_norm(x, dim=1)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _NORMS:
        return None
    owner = node.func.value
    return owner if last_name(owner) not in _LIBRARIES else next(iter(node.args), None)


def _reduced(normed: ast.expr | None, call: ast.Call, rest: list[ast.expr]) -> tuple[ast.expr, str] | None:
    """Return what a call reduces, and over what, unless it is over the dimensions of a sample."""
    dimensions = [*rest[:1], *(each.value for each in call.keywords if each.arg in ("dim", "axis", None))]
    if normed is None or len(rest) > 2 or len(dimensions) > 1:
        return None
    if not dimensions:
        return normed, "one number for the whole batch"
    if integer(dimensions[0]) in (1, 2, 3, -1):
        return normed, _PER_STEP if integer(dimensions[0]) == 1 else _PER_PIXEL
    is_batch = integer(dimensions[0]) == 0
    return (normed, "taken over the samples of the batch, dimension 0") if is_batch else None


def _sum_of_squares(source: SourceFile, node: ast.expr) -> tuple[ast.expr, str] | None:
    """Return x of ``(x ** 2).sum()``, also with a small number that is added, and what the sum is over."""
    for value in origins(source, node, 2):
        is_sum = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)
        call = value.left if is_sum else value  # type: ignore[attr-defined]
        match call:
            case ast.Call(func=ast.Attribute(attr="sum", value=owner), args=args):
                is_function = bool(args) and last_name(owner) == "torch"
                squares, rest = (args[0], args[1:]) if is_function else (owner, args)
            case _:
                continue
        match squares:
            case ast.BinOp(op=ast.Pow(), left=inner) | ast.Call(func=ast.Attribute(attr="square" | "pow", value=inner)):
                return _reduced(inner, call, rest)
            case _:
                return None
    return None


def _gradient_call(source: SourceFile, node: ast.expr, depth: int, views: frozenset[str]) -> ast.Call | None:
    """Return the ``autograd.grad`` with a graph from which a value comes unchanged, or viewed in another shape."""
    match node:
        case ast.Call(func=ast.Attribute(attr="grad")) | ast.Call(func=ast.Name(id="grad")):
            return node if _is_for_inputs(source, node) else None
        case _ if (viewed := _viewed(node, views)) is not None:
            return _gradient_call(source, viewed, depth, views)
        case _:
            values = possible_values(source, node) if depth else []
            unpacked = unpacked_call(source, node) if isinstance(node, ast.Name) else None
            values = [unpacked] if unpacked is not None and not values else values
            found = [_gradient_call(source, each, depth - 1, views) for each in values]
            return found[0] if found and all(found) else None


def _viewed(node: ast.expr, views: frozenset[str]) -> ast.expr | None:
    """Return what an expression shows in another shape, or with a small number added; None for other expressions."""
    match node:
        case ast.Subscript(value=inner, slice=index) if views is _VIEWS or isinstance(index, ast.Constant):
            return inner
        case ast.BinOp(op=ast.Add(), left=inner, right=small):
            is_small = isinstance(small, ast.Constant) or last_name(small).lower().startswith("eps")
            return inner if is_small else None
        case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in views and last_name(inner) != "torch":
            return inner
        case ast.Call(func=ast.Attribute(attr="flatten" | "reshape"), args=[inner, *_]) if views is _VIEWS:
            return inner
        case _:
            return None


def _is_of_images_or_signals(source: SourceFile, call: ast.Call, sizes: tuple[int, ...]) -> bool:
    """Return True if the inputs for which a call differentiates are computed with a factor of so many dimensions."""
    given = {each.arg: each.value for each in call.keywords}
    inputs = given.get("inputs") or call.args[1]
    nodes = [each for each in computed_from(source, inputs, 4) if isinstance(each, ast.Call | ast.Subscript)]
    return any(_dimensions(each) in sizes for each in nodes) and not any(
        last_name(getattr(each, "func", None)) in ("flatten", "unfold") for each in nodes
    )


def _dimensions(node: ast.expr) -> int:
    """Return 4 for ``torch.rand(n, 1, 1, 1)`` and ``a[:, None, None, None]``, 3 for ``a.view(n, 1, 1)``; 0 = unknown.

    Of three, the last two must be 1: the points of which a field of distances is learned are of three, too.
    """
    match node:
        case ast.Call(func=ast.Attribute(attr=name), args=[ast.Tuple(elts=sizes) | ast.List(elts=sizes)]):
            is_shaped = name in _SHAPED
        case ast.Call(func=ast.Attribute(attr=name), args=sizes):
            is_shaped = name in _SHAPED
        case ast.Subscript(slice=ast.Tuple(elts=sizes)):
            is_shaped = any(isinstance(each, ast.Constant) and each.value is None for each in sizes)
        case _:
            return 0
    is_known = is_shaped and not any(isinstance(each, ast.Starred) for each in sizes)
    is_factor = len(sizes) != 3 or all(getattr(each, "value", 0) in (1, None) for each in sizes[1:])
    return len(sizes) if is_known and is_factor else 0


def _is_for_inputs(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a call with ``create_graph=True`` that differentiates for something else than parameters."""
    given = {each.arg: each.value for each in call.keywords}
    inputs = given.get("inputs") or (call.args[1] if len(call.args) > 1 else None)
    graph = given.get("create_graph")
    values = [] if graph is None else [*origins(source, graph), default_of(source, graph)]
    if inputs is None or not any(isinstance(each, ast.Constant) and each.value is True for each in values):
        return False
    return not any(_PARAMETERS.search(ast.unparse(each)) for each in origins(source, inputs))


def _fix(source: SourceFile, norm: ast.expr, gradients: ast.expr) -> Fix | None:
    """Return the fix that flattens each sample before its norm is taken; None if no mean follows in the statement."""
    parent: Any = source.parents.get(id(norm))
    while isinstance(parent, ast.expr) and last_name(getattr(parent, "func", None)) != "mean":
        parent = source.parents.get(id(parent))
    if not isinstance(norm, ast.Call) or last_name(norm.func) not in _NORMS or not isinstance(parent, ast.Call):
        return None
    exponents = [each.value for each in norm.keywords if each.arg in ("p", "ord")]
    order = ast.unparse(exponents[0]) if exponents else "2"
    values = source.text.segment(gradients)
    text = f"{f'({values})' if isinstance(gradients, ast.BinOp) else values}.flatten(1).norm({order}, dim=1)"
    edit = source.text.replace(norm, text)
    return Fix((edit,), safe=False, description="Take the norm for each sample")


RULE = Rule(required_words=("grad(", "create_graph", "norm(|sqrt(|0.5"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=0.001)
for step in range(20):
    real, fake = torch.randn(32, 8) + 2, torch.randn(32, 8)
    share = torch.rand(32, 1)
    mixed = (share * real + (1 - share) * fake).requires_grad_()
    gradients = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    penalty = ((gradients.norm(2) - 1) ** 2).mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS032",
    title="The gradient penalty takes the norm of the whole batch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"gradients.norm(2)": "gradients.flatten(1).norm(2, dim=1)"}),
    fix="Take the norm for each sample: `gradients.flatten(1).norm(2, dim=1)`.",
    rule=RULE,
)
