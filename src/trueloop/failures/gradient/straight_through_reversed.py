"""A straight-through estimator is the wrong way round: the quantised value gets the gradient instead of the encoder.

What you see
    The encoder learns nothing from the reconstruction, or only through the commitment loss. Training looks fine, since
    the decoder gets the unquantised values; with the real codes, the reconstruction is far worse.

Why it happens
    In ``a + (b - a).detach()`` the forward pass gives ``b``, and the gradient goes to ``a``. The quantised value has to
    be ``b`` and the encoder's output ``a``. The other way round, nothing is quantised, and ``round``, ``argmax`` and
    ``one_hot`` have no gradient to pass on. Both forms have the same shape, so PyTorch raises no error.

Fix
    Leave the value that has a gradient outside of ``detach()``.

        z_q = z + (z_q - z).detach()
        hard = soft + (hard - soft).detach()

When this is fine
    - The value outside of ``detach()`` is the encoder's output or the probabilities.
    - ``hard - soft.detach() + soft``: the hard value has no gradient, the soft one has.
    - An embedding of known words is replaced by a disturbed one in the forward pass, and trained.

How it is detected
    Only the linter finds it: the sum contains a value with and without ``detach()``, so that it cancels in the forward
    pass; this value is the result of ``round``, ``sign``, ``argmax``, ``one_hot``, a comparison or a lookup in a
    codebook, or is called quantised or hard, and the value that remains is none of them. It also reports
    ``soft + (hard - soft)`` without any ``detach()``.

References
    Bengio et al., "Estimating or Propagating Gradients Through Stochastic Neurons", 2013, arXiv:1308.3432
    van den Oord et al., "Neural Discrete Representation Learning", 2017, arXiv:1711.00937
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

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


class _Term(NamedTuple):
    """A term of a sum."""

    node: ast.expr
    sign: int
    detached: bool


def find(source: SourceFile) -> Iterator[Hit]:
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


RULE = Rule(required_words=("detach(|.data|argm|one_hot|round(|sign(", " + |+(", "torch"), find=find)

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
    title="Straight-through estimator the wrong way round",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"z_q + (z - z_q).detach()": "z + (z_q - z).detach()"}),
    fix="Write soft + (hard - soft).detach(): the value outside of detach() gets the gradient.",
    rule=RULE,
)
