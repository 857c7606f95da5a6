"""Embeddings are normalised over the batch (dim=0) instead of over their features.

What you see
    A contrastive loss falls, but similar samples are not near each other: a search for the nearest neighbour is hardly
    better than with an untrained network. Results change with the batch size.

Why it happens
    ``normalize(z, dim=0)`` and ``z / z.norm(dim=0)`` give each feature the length 1 over the samples of the batch, so
    the products of rows are no cosines. ``cosine_similarity(a, b, dim=0)`` returns one number for each feature. All of
    them have a valid shape.

Fix
    Normalise over the features:

        z = F.normalize(z, dim=1)
        similarity = F.cosine_similarity(a, b, dim=1)

When this is fine
    - A single vector of shape [features].
    - Features are compared with each other, as the cross-correlation ``z1.T @ z2`` of Barlow Twins does.
    - The columns of a weight matrix of shape [features, classes].
    - A correlation over the samples, where the mean is subtracted first.

How it is detected
    In a run, the sanitizer looks for matrices whose columns have the length 1, in the graphs of losses. It reports a
    product of two of them that sums over the rest of a row instead, and a cosine similarity along the first of two
    dimensions without a mean that is subtracted, in two backward passes. The linter reports such a product, also with
    ``transpose`` or ``matmul``.

References
    torch.nn.functional.normalize,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html
    torch.nn.functional.cosine_similarity,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cosine_similarity.html
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from trueloop.analysis.queries.layer_arguments import argument_node
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event
from trueloop.tracing.source_calls import calls_in

MIN_TIMES: Final = 2
_NAMES: Final = ("normalize", "cosine_similarity", "CosineSimilarity", "norm", "vector_norm")
_TRANSPOSED: Final = frozenset(("t", "transpose", "permute", "swapaxes", "T", "mT"))
_PRODUCTS: Final = frozenset(("matmul", "mm"))


@dataclass(slots=True, kw_only=True, eq=False)
class ColumnsNormalised(Event):
    """A loss compares rows of matrices whose columns were normalised."""

    operation: str
    """What compares them: "matmul", "cosine_similarity"."""
    shape: tuple[int, ...]


class Detector(BaseDetector):
    """Counts the backward passes from such losses."""

    def __init__(self) -> None:
        self._times = 0

    def on_columns_normalised(self, event: ColumnsNormalised) -> Evidence | None:
        """Return evidence at the second backward pass."""
        self._times += 1
        if self._times != MIN_TIMES:
            return None
        samples, features = event.shape
        what = "The product of embeddings" if event.operation == "matmul" else "A cosine similarity"
        return Evidence(
            message=f"{what} of shape [{samples}, {features}] normalises over the {samples} samples of the batch "
            f"(dim=0) instead of the {features} features.",
            location=_line_of(event) or event.location,
        )


def _line_of(event: ColumnsNormalised) -> SourceLocation | None:
    """Return the first call with ``dim=0`` in the file of the backward pass that normalises."""
    file = event.location.source_location.path if event.location else ""
    for call in calls_in(file, "dim"):
        if last_name(call.func) in _NAMES and _is_first_dimension(call):
            return SourceLocation(file, call.lineno)
    return None


def _is_first_dimension(call: ast.Call) -> bool:
    dim = next((each.value for each in call.keywords if each.arg in ("dim", "axis")), None)
    if dim is None and last_name(call.func) == "normalize":
        dim = argument_node(call, "dim", 2)
    return isinstance(dim, ast.Constant) and dim.value == 0


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each product of rows whose columns were normalised."""
    reported: set[int] = set()
    for node in source.nodes_of(ast.BinOp, ast.Call):
        match node:
            case ast.BinOp(op=ast.MatMult(), left=left, right=right):
                pass
            case ast.Call(func=ast.Attribute(attr=name, value=ast.Name(id="torch")), args=[left, right]) if (
                name in _PRODUCTS
            ):
                pass
            case ast.Call(func=ast.Attribute(attr=name, value=left), args=[right]) if name in _PRODUCTS:
                pass
            case _:
                continue
        first, second = _normalised(source, left), _normalised(source, _transposed(right))
        if first is None or second is None or id(first) in reported:
            continue
        reported |= {id(first), id(second)}
        edits = [_edit(source, each) for each in {id(each): each for each in (first, second)}.values()]
        yield Hit(
            message=f"`{ast.unparse(first)}` normalises over the samples of the batch, but "
            f"`{ast.unparse(node)}` compares rows: normalise over the features, dim=1.",
            node=first,
            related=((node, "the rows are compared here"),),
            fix=Fix(tuple(edits), safe=False, description="Normalise over the features"),
        )


def _edit(source: SourceFile, call: ast.Call) -> Any:
    dim = next((each.value for each in call.keywords if each.arg in ("dim", "axis")), None)
    return source.text.replace(dim or argument_node(call, "dim", 2), "1")


def _transposed(node: ast.expr) -> ast.expr | None:
    """Return x of ``x.T`` and ``x.transpose(0, 1)``; None for other expressions."""
    match node:
        case ast.Attribute(attr=name, value=inner) | ast.Call(func=ast.Attribute(attr=name, value=inner)) if (
            name in _TRANSPOSED
        ):
            return node.args[0] if isinstance(node, ast.Call) and last_name(inner) == "torch" else inner
        case _:
            return None


def _normalised(source: SourceFile, node: ast.expr | None) -> ast.Call | None:
    """Return the call that gives each column of a value the length 1; None if nothing does, or if it is unclear."""
    while isinstance(node, ast.Subscript):
        node = node.value
    for each in origins(source, node) if node is not None else ():
        match each:
            case ast.Call() if last_name(each.func) == "normalize":
                return each if _is_first_dimension(each) else None
            case ast.BinOp(op=ast.Div(), left=left, right=ast.Call() as norm) if last_name(norm.func) in _NAMES[-2:]:
                owner = norm.func.value if isinstance(norm.func, ast.Attribute) else None
                of = [ast.unparse(e) for e in (owner, *norm.args[:1]) if e is not None]
                return norm if _is_first_dimension(norm) and ast.unparse(left) in of else None
            case _:
                pass
    return None


RULE = Rule(required_words=("norm", "0", ".T|.t(|transpose(|permute(|swapaxes(|mT"), find=find)

BAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 12)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

def embed(x):
    return F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=0)

for epoch in range(3):
    for rows in torch.randperm(256).split(32):
        z1, z2 = embed(x[rows]), embed(x[rows])
        loss = F.cross_entropy(z1 @ z2.T / 0.1, torch.arange(32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS041",
    title="Embeddings are normalised over the batch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"dim=0)": "dim=1)"}),
    fix="Normalise over the features: dim=1, or dim=-1.",
    rule=RULE,
    detector=Detector,
)
