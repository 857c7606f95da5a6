"""The loss is summed or averaged over the batch before the mask, sample weights, margin or focal factor is applied.

What you see
    A mask, sample weights or the factor of a focal loss have no effect, or a ranking loss falls to zero after a few
    updates while the ranking stays poor. No error is raised, since a single number can be multiplied by a mask and
    averaged again.

Why it happens
    A loss with its default reduction, and ``sum()`` or ``mean()`` without ``dim``, return one number for the whole
    batch. Multiplied by a mask it counts once for each valid position, so every position gets the loss of all of them.
    A log-sigmoid or a margin of the sum over the batch is satisfied as soon as the batch is right on average.

Fix
    Keep one value for each sample or position until the mask, the weights or the margin has been applied.

        loss = F.cross_entropy(logits, targets, reduction="none")
        loss = (loss * mask).sum() / mask.sum()

        score = (users * items).sum(dim=1)

When this is fine
    - The factor is one number, such as the weight of a term of the loss.
    - The values belong to a single sample.

How it is detected
    Only the linter finds it: a reduced value is multiplied by something called a mask or weights or by a comparison
    such as ``y.ne(0)``, or goes through a log-sigmoid, a ReLU or a lower limit, and the result is summed or averaged
    again, which has an effect only if there is more than one value. The same holds for a loss in the factor
    ``(1 - exp(-loss)) ** gamma`` of a focal loss.

References
    torch.nn.CrossEntropyLoss, ``reduction``, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    Rendle et al., "BPR: Bayesian Personalized Ranking from Implicit Feedback", 2009, https://arxiv.org/abs/1205.2618
"""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.method_chains import without_methods
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import loops_around, origins, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_REDUCTIONS: Final = frozenset(("sum", "mean"))
_LOSSES: Final = frozenset((
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss", "kl_div", "l1_loss",
    "mse_loss", "nll_loss", "smooth_l1_loss",
))  # fmt: skip
_LIMITS: Final = frozenset(("logsigmoid", "softplus", "relu", "clamp", "clamp_min", "maximum"))
_VIEWS: Final = frozenset(
    (
        "float",
        "view",
        "reshape",
        "unsqueeze",
        "squeeze",
        "to",
        "expand_as",
        "detach",
        "type_as",
        "type",
        "int",
        "long",
        "bool",
        "cuda",
    )
)
_COMPARING: Final = frozenset(
    ("ge", "gt", "le", "lt", "ne", "eq", "logical_not", "logical_and", "isin", "sequence_mask")
)
_LIBRARIES: Final = frozenset(("torch", "F", "functional"))
_WITHOUT_REDUCTION: Final = frozenset(("scipy", "tensorflow", "keras", "jax", "optax"))
"""Libraries whose functions of these names return one value per element or sample."""
_MASKS: Final = frozenset(("mask", "masks", "msk", "valid", "weights"))
_OF_SAMPLES: Final = frozenset(("sample", "samples", "example", "instance", "row"))
_MAX_DEPTH: Final = 3


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each value that is reduced before a mask or a margin is applied, and again after it."""
    reported: set[int] = set()
    for call in source.all_calls:
        for value in _reduced(source, call):
            for total, reason in _early(source, value, _MAX_DEPTH):
                if id(total) not in reported:
                    reported.add(id(total))
                    yield Hit(
                        message=f"`{ast.unparse(total)}` is one number for the whole batch, {reason}.",
                        node=total,
                        related=((call, "summed or averaged again here"),),
                    )
    for factor, total in _focal_totals(source):
        if id(total) not in reported:
            reported.add(id(total))
            yield Hit(
                message=f"`{ast.unparse(total)}` is one number for the whole batch, so the focal factor "
                f"`{ast.unparse(factor)}` is the same for all samples.",
                node=total,
                related=((factor, "the focal factor"),),
            )


def _focal_totals(source: SourceFile) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each focal factor ``(1 - exp(-loss)) ** gamma`` with the loss, if that is one number for the batch."""
    for node in source.nodes_of(ast.BinOp, ast.Call):
        match node:
            case (
                ast.BinOp(op=ast.Pow(), left=base)
                | ast.Call(func=ast.Attribute(attr="pow", value=ast.Name(id="torch")), args=[base, _])
                | ast.Call(func=ast.Attribute(attr="pow", value=base), args=[_])
            ):
                for probability in (p for each in origins(source, base, 2) for p in _complements(source, each)):
                    total = _total(source, _exponent(probability), _MAX_DEPTH)
                    if total is not None and _is_loss_of_batch(source, total):
                        yield node, total
                        break
            case _:
                pass


def _complements(source: SourceFile, node: ast.expr) -> Iterator[ast.expr]:
    """Yield the expressions that may be ``p`` in ``1 - p``."""
    match node:
        case ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1 | 1.0), right=probability):
            yield from origins(source, probability, 2)
        case _:
            pass


def _exponent(node: ast.expr) -> ast.expr:
    """Return x of ``torch.exp(x)`` and ``x.exp()``; the expression itself if it is no exponential."""
    match node:
        case ast.Call(func=ast.Attribute(attr="exp"), args=[exponent]):
            return exponent
        case ast.Call(func=ast.Attribute(attr="exp", value=exponent), args=[]):
            return exponent
        case _:
            return ast.Constant(None)


def _is_loss_of_batch(source: SourceFile, total: ast.expr) -> bool:
    """Return True for a loss of several samples, and for the mean of such losses."""
    if not isinstance(total, ast.Call):
        return False
    if last_name(total.func) in _REDUCTIONS:
        owner = total.args[0] if total.args else total.func.value  # type: ignore[attr-defined]
        values = [each for each in origins(source, owner, 2) if isinstance(each, ast.Call)]
        return any(last_name(each.func) in _LOSSES for each in values)
    counters = {each.id for loop in loops_around(source, total) for each in nodes_in(loop.target, ast.Name)}
    items = [each.slice for each in nodes_in(total, ast.Subscript)]
    return not any(each.id in counters for item in items for each in nodes_in(item, ast.Name))


def _reduced(source: SourceFile, call: ast.Call) -> Iterator[ast.expr]:
    """Yield x of ``x.mean()`` and ``torch.mean(x)``, where x may be a variable."""
    match call.func:
        case ast.Attribute(attr=name, value=owner) if name in _REDUCTIONS:
            inner = call.args[0] if last_name(owner) in _LIBRARIES and call.args else owner
            yield from origins(source, inner, 2)
        case _:
            pass


def _early(source: SourceFile, node: ast.expr, depth: int) -> Iterator[tuple[ast.expr, str]]:
    """Yield each total in an expression to which a mask, weights or a limit is applied, and what is wrong with it."""
    match node:
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            for total, factor in ((left, right), (right, left)):
                found = _total(source, total, depth)
                if found is not None and (_is_mask(source, factor) or _is_indexed_by_target(found, factor)):
                    yield found, f"so `{ast.unparse(factor)}` selects no part of it"
        case ast.UnaryOp(operand=inner):
            yield from _early(source, inner, depth)
        case ast.Call(func=ast.Attribute(attr="neg"), args=[inner]):
            yield from _early(source, inner, depth)
        case ast.Call() if last_name(node.func) in _LIMITS:
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            is_method = owner is not None and last_name(owner) not in _LIBRARIES
            limited = [owner] if owner is not None and is_method else node.args[:1]
            totals = [total for each in limited for total in _only_totals(source, each, depth)]
            if totals:
                yield totals[0], f"so `{last_name(node.func)}` is applied to the sum over all samples, not to each"
        case _:
            pass


def _only_totals(source: SourceFile, node: ast.expr, depth: int) -> list[ast.expr]:
    """Return the totals of which an expression consists, besides numbers; [] if it contains anything else."""
    found: list[ast.expr] = []
    parts = [node]
    while parts:
        part = parts.pop()
        total = _total(source, part, depth)
        if total is not None:
            found.append(total)
        elif isinstance(part, ast.BinOp):
            parts += [part.right, part.left]
        elif isinstance(part, ast.UnaryOp):
            parts.append(part.operand)
        elif not _is_number(part) and "margin" not in last_name(part):
            return []
    return [each for each in found if isinstance(each, ast.Call) and last_name(each.func) in _REDUCTIONS]


def _total(source: SourceFile, node: ast.expr, depth: int) -> ast.expr | None:
    """Return the call that reduces a value to one number for the batch; None if it has more, or is unknown."""
    match node:
        case ast.BinOp(left=left, right=right) if _is_number(left) or _is_number(right):
            return _total(source, right if _is_number(left) else left, depth)
        case ast.UnaryOp(operand=inner):
            return _total(source, inner, depth)
        case ast.Call(func=ast.Attribute(attr=name, value=owner), args=args, keywords=[]) if name in _REDUCTIONS:
            return node if len(args) == (last_name(owner) in _LIBRARIES) else None
        case ast.Call() if _is_reduced_loss(source, node):
            return node
        case ast.Name() if depth:
            totals = [_total(source, each, depth - 1) for each in possible_values(source, node)]
            return totals[0] if totals and all(totals) else None
        case _:
            return None


def _is_number(node: ast.expr) -> bool:
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def _is_reduced_loss(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``F.mse_loss(a, b)``, and for a call of ``nn.MSELoss()``, with the default reduction."""
    made = [each for each in possible_values(source, call.func) if isinstance(each, ast.Call)]
    binding: Any = source.module_of(call.lineno).bindings.get(dotted_name(call.func).partition(".")[0])
    if isinstance(binding, ast.Import | ast.ImportFrom):
        imported = getattr(binding, "module", None) or binding.names[0].name
        if imported.partition(".")[0] in _WITHOUT_REDUCTION:
            return False
    if last_name(call.func) in _LOSSES and not made and not ast.unparse(call.func).startswith("self."):
        return _is_default(call)
    return bool(made) and all(
        last_name(each.func).endswith("Loss")
        and last_name(each.func) not in definitions(source).classes
        and _is_default(each)
        for each in made
    )


def _is_default(call: ast.Call) -> bool:
    return not any(each.arg in ("reduction", "reduce", "size_average", None) for each in call.keywords)


def _is_indexed_by_target(total: ast.expr, factor: ast.expr) -> bool:
    """Return True for ``weights[y]`` where y is an argument of the loss."""
    arguments = total.args if isinstance(total, ast.Call) else []
    return isinstance(factor, ast.Subscript) and ast.unparse(factor.slice) in [ast.unparse(each) for each in arguments]


def _is_mask(source: SourceFile, node: ast.expr) -> bool:
    """Return True for something called a mask or weights, or a comparison of tensors, that is not one number."""
    for value in origins(source, node, 2):
        inner = without_methods(value, _VIEWS)
        if isinstance(inner, ast.Compare) or last_name(getattr(inner, "func", None)) in _COMPARING:
            return bool(nodes_in(inner, ast.Name))
        if isinstance(inner, ast.Call | ast.Constant):
            return False
    root = without_methods(node, _VIEWS, items=True)
    if isinstance(root, ast.Attribute):
        return bool(name_words(root.attr) & {"mask", "masks"})
    words = name_words(last_name(root))
    return bool(words & _MASKS) or ("weight" in words and bool(words & _OF_SAMPLES))


RULE = Rule(
    required_words=(
        "mask|msk|weight|valid|logsigmoid|softplus|relu|clamp|maximum|!=|gamma|focal|Focal",
        ".mean(|.sum(|exp(",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
tokens = torch.randint(1, 20, (64, 12))
targets = (3 * tokens + 1) % 20
mask = torch.arange(12) < torch.randint(3, 12, (64, 1))
model = nn.Sequential(nn.Embedding(20, 32), nn.Linear(32, 20))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    losses = nn.functional.cross_entropy(model(tokens).transpose(1, 2), targets)
    loss = (losses * mask).sum() / mask.sum()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS044",
    title="The loss is reduced before the mask or margin is applied",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"2), targets)": '2), targets, reduction="none")'}),
    fix="Keep one value per sample until then: reduction='none' in the loss, or sum(dim=...).",
    rule=RULE,
)
