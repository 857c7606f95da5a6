"""One term of a variational autoencoder's loss is summed over the batch, and the other one is averaged.

What you see
    With a summed KL divergence and an averaged reconstruction, all codes collapse to the prior: the KL term goes to
    zero, and the decoder returns the mean image. The other way round, the codes do not follow the prior at all. The
    effect changes with the batch size.

Why it happens
    ``F.mse_loss`` and ``F.binary_cross_entropy`` average over the batch and over all values of a sample. A sum over the
    batch and the code is larger by batch size times number of values, so one term outweighs the other by a factor of
    thousands that was not chosen.

Fix
    Sum both terms, then divide both by the batch size:

        reconstruction = F.mse_loss(output, x, reduction="sum")
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        loss = (reconstruction + kl) / len(x)

When this is fine
    - A small weight of the KL term makes up for the difference.
    - The sum is over the code only, ``dim=1``, and averaged over the batch, with a weight that was chosen for this, or
      for samples of a few values.
    - Both terms are divided by the number of values later.

How it is detected
    The sanitizer reads the divergence, by its terms, and the reconstruction loss from the graph of their sum. It
    reports them if one is summed and the other is averaged, if no weight outside of 0.1 to 10 makes up for it, and if
    this changes their ratio by 4 or more.

    The linter finds it in the source code: in one sum, a ``kl_divergence``, or the formula of that of a normal
    distribution, with ``torch.sum`` over all dimensions and no weight below 1, and a loss function with
    ``reduction="mean"`` or the mean of squares; or ``torch.mean`` and ``reduction="sum"``. The sum
    over ``dim=1`` with the mean over the batch, or the sum divided by the batch size, counts as well, if a sample has
    64 values or more. Variables, and functions and methods that return the terms, are followed.

References
    Kingma and Welling, 2013, "Auto-Encoding Variational Bayes", section 3, arXiv:1312.6114
    pytorch/examples#652, on the scale of the two terms, https://github.com/pytorch/examples/issues/652
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import assigned_in, function_of
from trueloop.analysis.queries.best_values import initial_number
from trueloop.analysis.queries.possible_values import default_of, origins, possible_values
from trueloop.analysis.queries.shuffled_loaders import function_called
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import dotted_name, integer, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import DivergenceRead

_LOSS_FUNCTIONS: Final = frozenset((
    "mse_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "l1_loss", "smooth_l1_loss",
))  # fmt: skip
_LOSS_MODULES: Final = frozenset(("MSELoss", "BCELoss", "BCEWithLogitsLoss", "L1Loss", "SmoothL1Loss"))
_MAX_DEPTH: Final = 4
MANY_VALUES: Final = 64  # values of a sample, from which the mean over them is far from their sum

MAX_WEIGHT: Final = 10  # a larger one may be the number of values
MIN_WEIGHT: Final = 0.1  # a smaller one may make up for the difference
MIN_RATIO: Final = 4
_WORDS: Final = {
    "sum": "summed over the batch",
    "mean": "averaged over the batch and all values",
    "rows": "averaged over the batch, as a sum for each sample",
    "each": "a sum for each sample",
}
_BATCH_SIZE: Final = re.compile(r"len\(\w+\)|[\w.]+\.(size\(0\)|shape\[0\])|(\w+\.)?batch_?size", re.IGNORECASE)


class _Term(NamedTuple):
    """A term of a loss, and how it is reduced."""

    is_divergence: bool
    reduction: str
    """ "sum" or "mean", over all dimensions; "each" = the sum of each sample, "rows" = averaged over the batch."""
    node: ast.expr


class Detector(BaseDetector):
    """Compares how the divergence and the reconstruction loss of a model are reduced."""

    def __init__(self) -> None:
        self._found = self._reported = False

    def on_divergence_read(self, event: DivergenceRead) -> Evidence | None:
        """Return evidence for the first divergence that is reduced in another way than the reconstruction."""
        self._found = True
        reductions = {event.reduction, event.loss_reduction}
        is_plain = all(MIN_WEIGHT <= each <= MAX_WEIGHT for each in (event.weight, event.loss_weight))
        by_sums = 1 if "sum" not in reductions else event.rows
        by_means = 1 if "mean" not in reductions else event.codes if event.reduction == "mean" else event.values
        few = MIN_RATIO if "sum" in reductions or event.reduction == "mean" else MANY_VALUES
        if self._reported or len(reductions - {""}) < 2 or not is_plain or by_sums * by_means < few:
            return None
        self._reported = True
        return Evidence(
            message=f"The reconstruction loss is {_WORDS[event.loss_reduction]}, but the KL divergence is "
            f"{_WORDS[event.reduction]}: this makes one {by_sums * by_means} times as important as the other.",
            location=event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if no loss had a divergence."""
        return "" if self._found else "no loss was the sum of a KL divergence and a reconstruction loss"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sum of a divergence and a reconstruction loss that are reduced in different ways."""
    for node in source.nodes_of(ast.BinOp):
        if not isinstance(node.op, ast.Add):
            continue
        parent = source.parents.get(id(node))
        if isinstance(parent, ast.BinOp) and not isinstance(parent.op, ast.Mult | ast.Div):
            continue  # a part of a longer sum
        terms = [term for each in _added(node) if (term := _term(source, each, 0)) is not None]
        divergence = next((each for each in terms if each.is_divergence), None)
        reconstruction = next((each for each in terms if not each.is_divergence), None)
        if divergence is None or reconstruction is None or divergence.reduction == reconstruction.reduction:
            continue
        if not _is_certain(source, divergence.reduction, reconstruction.reduction):
            continue
        yield Hit(
            message=f"The reconstruction loss is {_WORDS[reconstruction.reduction]}, but the KL divergence is "
            f"{_WORDS[divergence.reduction]}: one outweighs the other by about {_ratio(divergence, reconstruction)}.",
            node=reconstruction.node,
            related=((divergence.node, "the KL divergence"), (node, "added here")),
        )


def _is_certain(source: SourceFile, of_divergence: str, of_reconstruction: str) -> bool:
    """Return False if two reductions are the same up to a mean that follows, or differ by a few values."""
    if "each" in (of_divergence, of_reconstruction):
        return "sum" in (of_divergence, of_reconstruction)
    return (of_divergence, of_reconstruction) != ("rows", "mean") or _has_many_values(source)


def _ratio(divergence: _Term, reconstruction: _Term) -> str:
    """Return by what the two terms differ."""
    reductions = {divergence.reduction, reconstruction.reduction}
    if not reductions & {"rows", "each"}:
        return "batch size times number of values"
    return "the batch size" if "sum" in reductions else "the number of values"


def _has_many_values(source: SourceFile) -> bool:
    """Return True if a sample has many values, as an image: a convolution, or a linear layer of 64 features or more."""
    if any(last_name(call.func).startswith("Conv") for call in source.all_calls):
        return True
    linear = [call for call in source.all_calls if last_name(call.func) in ("Linear", "LazyLinear")]
    widths = [_width(source, value) for e in linear for value in e.args[1:2]]
    constants = [each.value for each in source.nodes_of(ast.Constant) if type(each.value) is int]
    return any(width in (784, 3072, 4096) for width in (*widths, *constants)) or any(
        width is not None and width >= MANY_VALUES for width in widths[-1:]
    )


def _width(source: SourceFile, node: ast.expr, depth: int = 2) -> int | None:
    """Return the integer that an expression is, also as a default value, or as a product: ``side * side``."""
    default = default_of(source, node)
    for each in (*origins(source, node), *(() if default is None else (default, *origins(source, default)))):
        number = integer(each)
        if number is None and depth and isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult):
            sides = _width(source, each.left, depth - 1), _width(source, each.right, depth - 1)
            number = sides[0] * sides[1] if sides[0] and sides[1] else None
        if number is not None:
            return number
    return None


def _added(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _added(node.left)
        yield from _added(node.right)
    else:
        yield node


def _term(source: SourceFile, node: ast.expr, depth: int) -> _Term | None:
    """Return the term that an expression computes; None for others, and for those that are weighted."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _term(source, inner, depth)
        case ast.BinOp():
            return _scaled_term(source, node, depth)
        case ast.Call():
            return (
                _divergence(source, node)
                or _squared_error(source, node)
                or _reconstruction(source, node)
                or _of_samples(source, node)
                or _returned(source, node, depth)
            )
        case ast.Name(id=name) if depth < _MAX_DEPTH:
            function = function_of(source, node)
            values = assigned_in(function, name) or possible_values(source, node)
            is_unchanged = len(values) == 1 and not any(
                dotted_name(each.target) == name for each in nodes_in(function, ast.AugAssign)
            )
            return _term(source, values[0], depth + 1) if is_unchanged else None
        case _:
            return None


def _scaled_term(source: SourceFile, node: ast.BinOp, depth: int) -> _Term | None:
    """Return the term of ``0.5 * term`` and of ``total / len(x)``."""
    match node.op:
        case ast.Mult() if _is_plain_weight(source, node.left):
            return _term(source, node.right, depth)
        case ast.Mult() if _is_plain_weight(source, node.right):
            return _term(source, node.left, depth)
        case ast.Div() if any(map(_is_batch_size, origins(source, node.right, 2))):
            term = _term(source, node.left, depth)
            return term._replace(reduction="rows") if term is not None and term.reduction == "sum" else None
        case _:
            return None


def _is_batch_size(node: ast.expr) -> bool:
    """Return True for ``len(x)``, ``x.size(0)``, ``x.shape[0]`` and ``batch_size``."""
    return bool(_BATCH_SIZE.fullmatch(ast.unparse(node)))


def _is_plain_weight(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a number from 0.5 to 10, or a parameter of the function with such a default."""
    while isinstance(node, ast.UnaryOp):
        node = node.operand
    number = initial_number(node)
    if number is None:
        number = initial_number(default_of(source, node))
    return number is not None and 0.5 <= abs(number) <= MAX_WEIGHT


def _reconstruction(source: SourceFile, call: ast.Call) -> _Term | None:
    """Return the term for a call of a loss function, or of a loss module that the file creates."""
    function: ast.Call | None = call if last_name(call.func) in _LOSS_FUNCTIONS else None
    if function is None:
        created = [each for each in origins(source, call.func) if isinstance(each, ast.Call)]
        if len(created) != 1 or last_name(created[0].func) not in _LOSS_MODULES:
            return None
        function = created[0]
    arguments = {each.arg: each.value for each in function.keywords}
    reduction = arguments.pop("reduction", None)
    if arguments.keys() & {None, "size_average", "reduce", "weight"} or len(function.args) > 2:
        return None
    kind = "mean" if reduction is None else getattr(reduction, "value", "")
    return _Term(False, kind, call) if kind in ("sum", "mean") else None


def _reduced(call: ast.Call) -> ast.expr | None:
    """Return x of ``x.sum()``, ``x.mean()``, ``torch.sum(x)`` and ``torch.mean(x)``, over all dimensions."""
    if last_name(call.func) not in ("sum", "mean") or call.keywords:
        return None
    is_function = dotted_name(getattr(call.func, "value", call.func)) == "torch"
    if len(call.args) != int(is_function):
        return None
    return call.args[0] if is_function else getattr(call.func, "value", None)


def _squared_error(source: SourceFile, call: ast.Call) -> _Term | None:
    """Return the term for ``((output - x) ** 2).mean()``."""
    values = origins(source, inner, 2) if (inner := _reduced(call)) is not None else ()
    return _Term(False, last_name(call.func), call) if any(map(_is_error, values)) else None


def _of_samples(source: SourceFile, call: ast.Call) -> _Term | None:
    """Return the term for ``((output - x) ** 2 / 2).sum(-1)``, or a divergence so reduced; "rows" for its mean."""
    averaged = _reduced(call) if last_name(call.func) == "mean" else None
    for each in origins(source, averaged, 2) if averaged is not None else (call,):
        row = _row_sum(each)
        for inner in origins(source, row, 2) if row is not None else ():
            is_divergence, error = _is_divergence(inner), inner
            while isinstance(error, ast.BinOp) and isinstance(error.op, ast.Mult | ast.Div):
                error = error.left if isinstance(error.op, ast.Div) else error.right
            if is_divergence or _is_error(error):
                return _Term(is_divergence, "each" if averaged is None else "rows", call)
    return None


def _is_error(node: ast.expr) -> bool:
    """Return True for ``(output - x) ** 2`` and ``F.mse_loss(output, x, reduction="none")``."""
    match node:
        case (
            ast.BinOp(op=ast.Pow(), left=base, right=ast.Constant(value=2))
            | ast.Call(func=ast.Attribute(attr="pow" | "square" | "abs", value=base))
        ) if isinstance(base, ast.BinOp) and isinstance(base.op, ast.Sub):
            return True
        case ast.Call(func=function, keywords=keywords) if last_name(function) in _LOSS_FUNCTIONS:
            return any(each.arg == "reduction" and getattr(each.value, "value", "") == "none" for each in keywords)
        case _:
            return False


def _divergence(source: SourceFile, call: ast.Call) -> _Term | None:
    """Return the term for ``kl_divergence(q, p).sum()`` and ``torch.sum(1 + logvar - mu**2 - exp(logvar))``."""
    inner = _reduced(call)
    if inner is None:
        return None
    is_plain = any(_is_divergence(each) and not _row_sum(each) for each in origins(source, inner, 2))
    return _Term(True, last_name(call.func), call) if is_plain else None


def _row_sum(node: ast.expr) -> ast.expr | None:
    """Return x of ``torch.sum(x, dim=1)`` and ``x.sum(-1)``, perhaps with a factor; None for anything else."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        node = node.right
    if not isinstance(node, ast.Call) or last_name(node.func) != "sum":
        return None
    is_function = dotted_name(getattr(node.func, "value", node.func)) == "torch"
    dims = [*node.args[int(is_function) :], *(each.value for each in node.keywords if each.arg in ("dim", "axis"))]
    dims = dims[0].elts if len(dims) == 1 and isinstance(dims[0], ast.Tuple | ast.List) else dims
    if not dims or integer(dims[0]) not in (1, -1):
        return None
    return node.args[0] if is_function else getattr(node.func, "value", None)


def _is_divergence(node: ast.expr) -> bool:
    """Return True for the KL divergence of normal distributions, by PyTorch's function or as a formula."""
    if isinstance(node, ast.Call) and last_name(node.func) == "kl_divergence":
        return True
    text = ast.unparse(node)
    squares = sum(map(text.count, ("pow(2)", "** 2", "square(")))
    has_exponential, has_logarithm = ".exp()" in text or "torch.exp(" in text, ".log()" in text or "log(" in text
    return bool(squares and has_exponential) or (squares > 1 and has_logarithm)


def _returned(source: SourceFile, call: ast.Call, depth: int) -> _Term | None:
    """Return the term that a function or method of the program returns, if it has one ``return``."""
    function = function_called(source, call) if depth < _MAX_DEPTH else None
    returns = nodes_in(function, ast.Return) if function is not None else []
    value = returns[0].value if len(returns) == 1 else None
    return None if value is None else _term(source, value, depth + 1)


RULE = Rule(required_words=("exp(|log(|kl_divergence", "sum|mean", "loss|Loss|entropy|elbo|ELBO|backward("), find=find)

BAD = """
import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 4)
        self.decoder = nn.Linear(2, 8)

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decoder(z), mu, logvar


torch.manual_seed(0)
x = torch.randn(128, 8)
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for step in range(8):
    optimizer.zero_grad()
    output, mu, logvar = model(x)
    reconstruction = nn.functional.mse_loss(output, x)
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    loss = reconstruction + kl
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS013",
    title="KL divergence is summed, reconstruction is averaged",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "mse_loss(output, x)": 'mse_loss(output, x, reduction="sum")',
            "loss = reconstruction + kl": "loss = (reconstruction + kl) / len(x)",
        },
    ),
    fix="Sum both terms, then divide both by the batch size.",
    rule=RULE,
    detector=Detector,
)
