"""The same term is added to a loss twice, where the second one should be another term.

What you see
    One of two directions or tasks is not trained: with a contrastive loss, images find their texts, and texts do not
    find their images. The loss is exactly twice one of its parts.

Why it happens
    A line was copied, and an argument was not changed. Both calls compute the same number.

Fix
    Pass the other value, such as the transposed matrix for the other direction:

        loss = (cross_entropy(logits, labels) + cross_entropy(logits.t(), labels)) / 2

When this is fine
    - The model is called again for each term, and its dropout makes two different outputs.
    - One of the variables is assigned in between.
    - The term has a factor, as in ``2 * loss``.

How it is detected
    Only the linter finds it, from the source code: two terms of a value that is minimised are calls of a loss with the
    same text and the same sign, their arguments call no model and nothing random, and no argument is assigned between
    them.

References
    Radford et al., "Learning transferable visual models from natural language supervision", figure 3, on the loss of
    both directions, https://arxiv.org/abs/2103.00020
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.minimised_values import minimised
from trueloop.analysis.queries.signed_terms import Term, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_LOSS: Final = re.compile(r"loss|crit|entropy|bce|mse|nll|kl_?div|(^|_)ce($|_)", re.IGNORECASE)
_PLAIN: Final = frozenset((
    "arange", "zeros", "ones", "zeros_like", "ones_like", "full", "full_like", "tensor", "len", "size", "float", "long",
    "view", "reshape", "flatten", "squeeze", "unsqueeze", "to", "t", "transpose", "permute", "detach", "mean", "sum",
    "log", "exp", "softmax", "log_softmax", "sigmoid", "argmax", "contiguous", "expand", "type", "item", "norm",
    "normalize", "view_as", "expand_as", "range", "int", "sqrt", "abs", "pow", "clone",
))  # fmt: skip


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the second of two equal terms of a loss."""
    used = minimised(source)
    reported = set[int]()
    for terms in minimised_terms(source):
        first: dict[tuple[int, str], Term] = {}
        for term in terms:
            if not isinstance(term.node, ast.Call) or id(term.node) not in used or not _is_repeatable(term.node):
                continue
            key = term.sign, ast.unparse(term.node)
            earlier = first.setdefault(key, term)
            # with the same operand of a sum, one variable has either value
            are_added = earlier.added is not term.added and earlier.node is not term.node
            if not are_added or id(term.node) in reported or not _is_same(source, earlier.node, term.node):
                continue
            reported |= {id(term.node), id(earlier.node)}
            one, other = sorted((earlier.node, term.node), key=lambda each: (each.lineno, each.col_offset))
            yield Hit(
                message=f"`{source.text.segment(other)}` is added to the loss twice, with the same arguments: one of "
                "them should probably be another term.",
                node=other,
                related=((one, "the same term"),),
            )


def _is_repeatable(call: ast.Call) -> bool:
    """Return True for a call of a loss that gives the same number when it is repeated."""
    if not _LOSS.search(last_name(call.func)) or len(call.args) + len(call.keywords) < 2:
        return False
    arguments = [*call.args, *(each.value for each in call.keywords)]
    return all(last_name(inner.func) in _PLAIN for each in arguments for inner in nodes_in(each, ast.Call))


def _is_same(source: SourceFile, one: ast.expr, other: ast.expr) -> bool:
    """Return True if both calls are in one block, and nothing they read is assigned between them."""
    function = function_of(source, one)
    if function is not function_of(source, other):
        return False
    start, end = sorted((one.lineno, other.lineno))
    read = {each.id for each in nodes_in(one, ast.Name)}
    stored = (each for each in nodes_in(function, ast.Name) if isinstance(each.ctx, ast.Store))
    if any(each.id in read and start <= each.lineno <= end for each in stored):
        return False
    return source.block(source.statement_of(one)) is source.block(source.statement_of(other))


RULE = Rule(required_words=("loss|crit|entropy", "backward|training_step"), find=find)

BAD = """
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
texts = torch.randn(256, 8)
images = texts @ torch.randn(8, 12)
text_model, image_model = nn.Linear(8, 16), nn.Linear(12, 16)
optimizer = torch.optim.Adam([*text_model.parameters(), *image_model.parameters()], lr=0.01)
for epoch in range(5):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        one = F.normalize(text_model(texts[rows]), dim=1)
        other = F.normalize(image_model(images[rows]), dim=1)
        logits = one @ other.t() / 0.1
        labels = torch.arange(len(rows))
        text_loss = F.cross_entropy(logits, labels)
        image_loss = F.cross_entropy(logits, labels)
        ((text_loss + image_loss) / 2).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS051",
    title="The same term is added to the loss twice",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD, {"image_loss = F.cross_entropy(logits, labels)": "image_loss = F.cross_entropy(logits.t(), labels)"}
    ),
    fix="Change the argument of the second term, or remove it.",
    rule=RULE,
)
