"""A straight-through estimator is missing or the wrong way round: the encoder gets no gradient from the decoder.

What you see
    The encoder learns nothing from the reconstruction, or only through the commitment loss. Training looks fine, since
    the decoder gets the unquantised values; with the real codes, the reconstruction is far worse.

Why it happens
    In ``a + (b - a).detach()`` the forward pass gives ``b``, and the gradient goes to ``a``. The quantised value has to
    be ``b`` and the encoder's output ``a``. The other way round, nothing is quantised, and ``round``, ``argmax`` and
    ``one_hot`` have no gradient to pass on. Both forms have the same shape, so PyTorch raises no error. If the codes of
    a codebook go to the decoder unchanged, the decoder trains the codebook, and the encoder follows the commitment
    loss alone.

Fix
    Leave the value that has a gradient outside of ``detach()``.

        z_q = z + (z_q - z).detach()
        hard = soft + (hard - soft).detach()

When this is fine
    - The value outside of ``detach()`` is the encoder's output or the probabilities.
    - ``hard - soft.detach() + soft``: the hard value has no gradient, the soft one has.
    - An embedding of known words is replaced by a disturbed one in the forward pass, and trained.
    - Codes are looked up to count or decode them, without a commitment loss, or the program has an own ``Function``.

How it is detected
    In a run, the sanitizer looks for the two losses of a codebook, each of which compares the codes with the encoder's
    output and leaves the other side fixed. It reports a third loss whose graph contains the codes but not the encoder.

    The linter reports a module that returns what it looked up for ``argmin`` in a codebook, and compares it with a
    detached value, in a program with a decoder and without any straight-through estimator. It also reports a sum that
    is the wrong way round: the sum contains a value with and without ``detach()``, so that it cancels in the forward
    pass; this value is the result of ``round``, ``sign``, ``argmax``, ``one_hot``, a comparison or a lookup in a
    codebook, or is called quantised or hard, and the value that remains is none of them; and
    ``soft + (hard - soft)`` without any ``detach()``.

References
    Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons", 2013, arXiv:1308.3432
    van den Oord et al., "Neural Discrete Representation Learning", 2017, arXiv:1711.00937
"""

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.possible_values import is_without_gradients, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardLosses, GraphNode, LossGraphRead, MeasuredLoss

_HARD_NAME: Final = re.compile(
    r"(^|_)(z_?q|q|x_?q|hard|quanti[sz]ed?|quant|codes?|codewords?|binary|binari[sz]ed|rounded|discrete)($|_)",
    re.IGNORECASE,
)
_SOFT_NAME: Final = re.compile(r"soft|prob|logit|(^|_)pre_?quant|unquanti[sz]", re.IGNORECASE)
_STEPS: Final = frozenset((
    "argmax", "argmin", "bucketize", "ceil", "floor", "heaviside", "one_hot", "round", "sign", "scatter_",
))  # fmt: skip
_SAME: Final = frozenset((
    "bfloat16", "bool", "clone", "contiguous", "cuda", "double", "float", "half", "int", "long", "movedim", "permute",
    "rearrange", "reshape", "squeeze", "to", "transpose", "type", "type_as", "unflatten", "unsqueeze", "view",
    "view_as",
))  # fmt: skip
_INDEX_SEARCH: Final = frozenset(("argmax", "argmin", "min", "max", "topk", "sort"))
_CODEBOOK: Final = re.compile(r"code|quant|(^|_)vq|cluster|centroid|prototype", re.IGNORECASE)


_DECODER: Final = re.compile(r"decod|self\.dec\b|generator", re.IGNORECASE)
_OWN_GRADIENT: Final = re.compile(
    r"autograd|\.apply\(|\.grad\b|register_hook|gumbel|straight|\bste\b|rotat", re.IGNORECASE
)
_LOSS_OF_CODES: Final = re.compile(r"(loss|criterion|pow|square)\(.*detach\(|detach\(.*(\*\* ?2|pow\(2)", re.IGNORECASE)
MAX_LOSSES: Final = 8


class _Term(NamedTuple):
    """A term of a sum."""

    node: ast.expr
    sign: int
    detached: bool


class Detector(BaseDetector):
    """Follows the graphs of three losses: one trains the codes, one the encoder to stay near them, one the decoder."""

    def __init__(self) -> None:
        self._cut_at: int | None = None
        """Position of the loss of the codes in the next backward pass, if the codes pass no gradient on."""
        self._checked = False

    def on_loss_graph_read(self, event: LossGraphRead) -> None:
        """Look for the losses of a codebook."""
        losses, nodes = event.live_losses, event.live_nodes
        is_known = [each.position for each in losses] == list(range(len(losses)))
        if not is_known or not nodes or self._cut_at is not None or len(losses) > MAX_LOSSES:
            return
        for codes, encoder in permutations(losses, 2):
            behind = [_nodes_behind(nodes, each.position) for each in (codes, encoder)]
            weights = [sum(nodes[each].operation == "leaf" for each in numbers) for numbers in behind]
            is_codebook = weights[0] == 1 < weights[1]
            if codes.kind == encoder.kind == "mse" and is_codebook and _are_crossed(codes, encoder):
                self._checked = True
                reached = [_nodes_behind(nodes, k) for k in range(len(losses)) if losses[k] not in (codes, encoder)]
                with_codes = [each for each in reached if codes.position in each]
                if with_codes and not any(encoder.position in each for each in reached):
                    self._cut_at = codes.position

    def on_backward_losses(self, event: BackwardLosses) -> Evidence | None:
        """Return evidence at the loss that trains the codes."""
        if self._cut_at is None or self._cut_at >= len(event.losses):
            return None
        location = event.losses[self._cut_at].location or event.location
        self._cut_at = None
        return Evidence(
            message="The quantised codes reach the decoder, but no gradient goes from there to the encoder: only the "
            "commitment loss trains it.",
            location=location,
        )

    def inconclusive(self) -> str:
        """Return a reason if no codebook was found."""
        return "" if self._checked else "no two losses compared codes and encoder"


def _are_crossed(codes: MeasuredLoss, encoder: MeasuredLoss) -> bool:
    """Return True if the input of each loss is the target of the other one."""
    pointers = [each.data_ptr() for each in (codes.answers, codes.targets, encoder.answers, encoder.targets)]
    return pointers[0] == pointers[3] != pointers[1] == pointers[2]


def _nodes_behind(nodes: Sequence[GraphNode], number: int) -> set[int]:
    """Return the numbers of the nodes from which a node is computed."""
    found, queue = set[int](), [number]
    while queue:
        parents = [each for each in nodes[queue.pop()].parents if each is not None and each not in found]
        found.update(parents)
        queue += parents
    return found


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each sum in which a hard value cancels and a soft one remains, and each lookup without an estimator."""
    yield from _reversed_sums(source)
    if source.mentions(_DECODER) and not source.mentions(_OWN_GRADIENT) and not any(_cancels(source)):
        yield from _lookups_without_estimator(source)


def _lookups_without_estimator(source: SourceFile) -> Iterator[Hit]:
    """Yield each lookup of the nearest code that a function returns with a loss of the codes."""
    for statement in source.nodes_of(ast.Return):
        function, value = function_of(source, statement), statement.value
        if value is None or not _LOSS_OF_CODES.search(ast.unparse(function)):
            continue
        for each in value.elts if isinstance(value, ast.Tuple) else [value]:
            lookup = _lookup(source, each)
            if lookup is not None and not is_without_gradients(source, lookup):
                yield Hit(
                    message=f"`{ast.unparse(each)}` passes no gradient on to the encoder, since `argmin` has none: "
                    "only the commitment loss trains it. Return z + (z_q - z).detach().",
                    node=lookup,
                    related=((statement, "returned here"),),
                )


def _lookup(source: SourceFile, node: ast.expr, depth: int = 6) -> ast.expr | None:
    """Return the lookup of the nearest code whose result, perhaps in another shape, is the value of an expression."""
    for each in origins(source, node) if depth else ():
        match each:
            case ast.Call(func=ast.Attribute(attr=attr, value=inner)) if attr in _SAME:
                return _lookup(source, inner, depth - 1)
            case ast.Subscript() | ast.Call() if last_name(getattr(each, "func", None)) not in _STEPS:
                return each if _is_step(source, each, depth) else None
            case _:
                pass
    return None


def _cancels(source: SourceFile) -> Iterator[bool]:
    """Yield whether each sum of three terms contains a value with and without ``detach()``."""
    for node in source.nodes_of(ast.BinOp):
        terms = list(_terms(node, 1, detached=False))
        if len(terms) == 3:
            live = [ast.unparse(each.node) for each in terms if not each.detached and each.sign == 1]
            yield any(each.detached and each.sign == -1 and ast.unparse(each.node) in live for each in terms)


def _reversed_sums(source: SourceFile) -> Iterator[Hit]:
    """Yield each sum in which a hard value cancels and a soft one remains."""
    for node in source.nodes_of(ast.BinOp):
        if isinstance(source.parents.get(id(node)), ast.BinOp):
            continue
        terms = list(_terms(node, 1, detached=False))
        if len(terms) != 3:
            continue
        for live in (each for each in terms if not each.detached and each.sign == 1):
            text = ast.unparse(live.node)
            cancelled = [each for each in terms if each.sign == -1 and ast.unparse(each.node) == text]
            rest = [each for each in terms if each is not live and each not in cancelled]
            if len(cancelled) != 1 or len(rest) != 1:
                continue
            if not cancelled[0].detached:
                yield from _without_detach(source, node, live, rest[0])
            elif rest[0].sign == 1 and _is_hard(source, live.node) and not _is_hard(source, rest[0].node):
                yield _hit(source, node, live.node, rest[0].node)


def _without_detach(source: SourceFile, total: ast.BinOp, live: _Term, rest: _Term) -> Iterator[Hit]:
    """Yield ``soft + (hard - soft)``, which is the hard value, in the backward pass too."""
    is_sum = isinstance(total.op, ast.Add) and isinstance(total.right, ast.BinOp)
    if not rest.detached and is_sum and _is_hard(source, rest.node):
        difference = source.text.segment(total.right)
        edit = source.text.replace(total.right, f"{difference}.detach()")
        yield Hit(
            message=f"`{ast.unparse(total)}` is `{ast.unparse(rest.node)}`, in the backward pass too: without "
            f"`detach()` around the difference, `{ast.unparse(live.node)}` gets no gradient from it.",
            node=total,
            fix=Fix((edit,), safe=False, description="Detach the difference"),
        )


def _hit(source: SourceFile, total: ast.BinOp, hard: ast.expr, soft: ast.expr) -> Hit:
    names = source.text.segment(hard), source.text.segment(soft)
    right = f"{names[1]} + ({names[0]} - {names[1]}).detach()"
    is_plain = all(isinstance(each, ast.Name | ast.Attribute | ast.Call | ast.Subscript) for each in (hard, soft))
    fix = Fix((source.text.replace(total, right),), safe=False, description="Exchange both values")
    return Hit(
        message=f"`{ast.unparse(total)}` has the value of `{ast.unparse(soft)}` and passes the gradient to "
        f"`{ast.unparse(hard)}`: the straight-through estimator is the wrong way round.",
        node=total,
        fix=fix if is_plain else None,
    )


def _terms(node: ast.expr, sign: int, *, detached: bool) -> Iterator[_Term]:
    """Yield the terms of a sum, also of a sum that is detached as a whole."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub() as operator, left=left, right=right):
            yield from _terms(left, sign, detached=detached)
            yield from _terms(right, sign if isinstance(operator, ast.Add) else -sign, detached=detached)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield from _terms(operand, -sign, detached=detached)
        case (
            ast.Call(func=ast.Attribute(attr="detach", value=inner), args=[]) | ast.Attribute(attr="data", value=inner)
        ):
            yield from _terms(inner, sign, detached=True)
        case ast.Call(func=ast.Attribute(attr="detach", value=ast.Name(id="torch")), args=[inner]):
            yield from _terms(inner, sign, detached=True)
        case _:
            yield _Term(node, sign, detached)


def _is_hard(source: SourceFile, node: ast.expr, depth: int = 6) -> bool:
    """Return True for a value that was chosen by an index, a comparison or rounding, or is called like one."""
    chain = list(origins(source, node))
    name = last_name(node)
    if depth and (any(_is_step(source, each, depth) for each in chain) or _is_filled(source, name)):
        return True
    is_computed = any(not isinstance(each, ast.Name | ast.Attribute) for each in chain[1:])
    return not is_computed and bool(_HARD_NAME.search(name)) and not _SOFT_NAME.search(name)


def _is_filled(source: SourceFile, name: str) -> bool:
    """Return True if ones are written into a tensor at some indices: ``encodings.scatter_(1, indices, 1)``."""
    return bool(name) and f"{name}.scatter_(" in source.text.source


def _is_step(source: SourceFile, node: ast.expr, depth: int) -> bool:
    """Return True if an expression itself computes a hard value."""
    match node:
        case ast.Compare():
            return True
        case ast.Subscript(value=table, slice=index):
            return _is_codebook(source, table, index)
        case ast.BinOp(op=ast.MatMult(), left=left):
            return _is_hard(source, left, depth - 1)
        case ast.BinOp(op=ast.Sub() | ast.Add() | ast.Mult() | ast.Div(), left=left, right=ast.Constant()):
            return _is_hard(source, left, depth - 1)  # round(x * 8) / 8
        case ast.Call():
            return _is_step_call(source, node, depth)
        case _:
            return False


def _is_step_call(source: SourceFile, call: ast.Call, depth: int) -> bool:
    name = last_name(call.func)
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    inner = [owner, *call.args] if owner is not None else call.args
    tensors = [each for each in inner if ast.unparse(each) not in ("torch", "F", "nn.functional", "einops")]
    if name in _STEPS or name == "index_select":
        return True
    if name in _SAME or name in ("matmul", "mm"):
        return bool(tensors) and _is_hard(source, tensors[0], depth - 1)
    if name == "where":
        return bool(call.args) and all(isinstance(each, ast.Constant | ast.UnaryOp) for each in call.args[1:])
    if name == "embedding" and len(call.args) == 2:
        return _is_codebook(source, call.args[1], call.args[0])
    return len(call.args) == 1 and _is_codebook(source, call.func, call.args[0])


def _is_codebook(source: SourceFile, table: ast.expr, index: ast.expr) -> bool:
    """Return True for a lookup of the nearest code: by its index, or in a table that is called a codebook."""
    chosen = [each for each in origins(source, index) if isinstance(each, ast.Call | ast.Subscript)]
    calls = [e for each in chosen for e in walk(each) if isinstance(e, ast.Call)]
    if any(last_name(each.func) in ("argmax", "argmin") for each in calls):
        return True
    is_searched = any(last_name(each.func) in _INDEX_SEARCH for each in calls)
    return is_searched and bool(_CODEBOOK.search(ast.unparse(table)))


RULE = Rule(required_words=("detach(|.data|argm|one_hot|round(|sign(", " + |+(|+=", "torch"), find=find)

BAD = """
import torch
from torch import nn


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.codebook = nn.Embedding(16, 4)

    def forward(self, z):
        index = torch.cdist(z, self.codebook.weight).argmin(1)
        z_q = self.codebook(index)
        loss = nn.functional.mse_loss(z_q, z.detach()) + 0.25 * nn.functional.mse_loss(z, z_q.detach())
        z_q = z_q + (z - z_q).detach()
        return z_q, loss


torch.manual_seed(0)
x = torch.randn(128, 8)
encoder, quantizer, decoder = nn.Linear(8, 4), Quantizer(), nn.Linear(4, 8)
model = nn.ModuleList([encoder, quantizer, decoder])
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for step in range(8):
    z_q, commitment = quantizer(encoder(x))
    loss = nn.functional.mse_loss(decoder(z_q), x) + commitment
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD024",
    title="Straight-through estimator is missing or the wrong way round",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"z_q + (z - z_q).detach()": "z + (z_q - z).detach()"}),
    fix="Write soft + (hard - soft).detach(): the value outside of detach() gets the gradient.",
    rule=RULE,
    detector=Detector,
)
