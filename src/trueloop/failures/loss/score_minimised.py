"""A score that should rise, such as a Dice score or a similarity, is minimised instead of its distance from 1.

What you see
    The loss falls to 0, or to -1 for a similarity, and the predictions get worse: masks avoid the object, and vectors
    point away from their targets.

Why it happens
    A Dice score, an IoU, SSIM and a cosine similarity are 1 for a perfect prediction. ``backward()`` and ``step()``
    make the value smaller, whatever the variable is called.

Fix
    Minimise the distance from 1:

        loss = 1 - dice_score(probabilities, masks)

When this is fine
    - The score is subtracted, or has a minus or a negative factor.
    - A module of losses names its loss after the score, as in ``monai.losses.Dice``.
    - The optimizer has ``maximize=True``.
    - A similarity of vectors that should differ is one of several terms, as in a penalty for equal features, or in the
      loss of a contrastive model.

How it is detected
    Only the linter finds it, from the source code. It follows the signs of all terms of the value on which
    ``backward()`` is called, through variables, functions, sums and reductions, and reports a positive overlap divided
    by a sum of sizes, and a call of a library's ``ssim``, ``psnr`` or ``dice_score``. A cosine similarity is reported
    if it is the only term, and one of its arguments is a target, a detached value or part of the batch.

References
    Milletari et al., "V-Net", 2016, on the Dice loss, https://arxiv.org/abs/1606.04797
    torch.nn.functional.cosine_similarity,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cosine_similarity.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import is_label
from trueloop.analysis.queries.minimised_values import minimised
from trueloop.analysis.queries.possible_values import enclosing_nodes, possible_values
from trueloop.analysis.queries.signed_terms import Term, may_ascend, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SCORE: Final = re.compile(
    r"^((ms_?)?ssim|psnr|(mean_?)?iou(_score)?|dice(_(score|coef\w*))?|jaccard(_index|_score)?)$"
)
_LOSSES: Final = frozenset(("loss", "losses", "criterion", "criterions"))
_NAMED_SCORE: Final = re.compile(r"_(score|coef\w*|index)$|psnr")
_OVERLAP: Final = re.compile(r"inter(\b|_|sect)|overlap|(^|\W)tps?\b", re.IGNORECASE)
_SIZE: Final = re.compile(r"union|sum\(.*\+.*sum\(|(^|\W)f[pn]s?\b", re.IGNORECASE | re.DOTALL)
_APART: Final = re.compile(r"neg|anti|other|wrong|adv|orth", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each score that is a positive term of a loss."""
    if may_ascend(source):
        return
    used, seen = minimised(source), set[int]()
    groups = minimised_terms(source)
    lowered = {id(term.node) for terms in groups for term in terms if term.sign < 0}
    for terms in groups:
        for term in terms:
            score = _score(source, term, terms[0].node) if id(term.node) in used - seen - lowered else ""
            if score:
                seen.add(id(term.node))
                yield _hit(source, term.node, score)
                break


def _score(source: SourceFile, term: Term, root: ast.expr) -> str:
    """Return what a term with a positive sign measures; "" if it is no score that should rise."""
    if term.sign < 0:
        return ""
    match term.node:
        case ast.BinOp(op=ast.Div(), left=overlap, right=size):
            return "overlap" if _is_overlap(source, overlap, size) else ""
        case ast.Call() as call:
            name = last_name(call.func)
            if _is_similarity(source, call):
                return "similarity" if term.added is root and _has_target(source, call) else ""
            *package, _ = source.qualified_name(call.func).split(".")
            is_score = package and not _is_loss(package, name)
            return name if is_score and _SCORE.match(name.lower()) else ""
        case _:
            return ""


def _is_loss(package: list[str], name: str) -> bool:
    """Return True for ``monai.losses.Dice``, another name of its ``DiceLoss``, but not for ``losses.dice_score``."""
    return bool(_LOSSES & set(package)) and not _NAMED_SCORE.search(name.lower())


def _is_overlap(source: SourceFile, overlap: ast.expr, size: ast.expr) -> bool:
    """Return True for the sum of the products of two masks, divided by sums of both."""
    text, divisor = ast.unparse(overlap), ast.unparse(size)
    for each in nodes_in(size, ast.Name):
        divisor += " " + " ".join(map(ast.unparse, possible_values(source, each)))
    if not _SIZE.search(divisor):
        return False
    if _OVERLAP.search(text):
        return True
    products = (each for each in nodes_in(overlap, ast.BinOp) if isinstance(each.op, ast.Mult))
    return "sum" in text and any(
        not nodes_in(each, ast.Constant) and all(ast.unparse(part) in divisor for part in (each.left, each.right))
        for each in products
    )


def _is_similarity(source: SourceFile, call: ast.Call) -> bool:
    if last_name(call.func) == "cosine_similarity":
        return True
    made = [call.func] if isinstance(call.func, ast.Call) else possible_values(source, call.func)
    return any(isinstance(each, ast.Call) and last_name(each.func) == "CosineSimilarity" for each in made)


def _has_target(source: SourceFile, call: ast.Call) -> bool:
    """Return True if an output should become similar to one of the arguments: a target, or a part of the batch."""
    arguments = call.args[:2]
    if len(arguments) < 2 or any(_APART.search(ast.unparse(each)) for each in arguments):
        return False
    if any(is_label(each) or "detach()" in ast.unparse(each) for each in arguments):
        return True
    kinds = [_is_batch(source, each) for each in arguments]
    return kinds[0] is not kinds[1]


def _is_batch(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a variable of a loop around a node."""
    loops = [each.target for each in enclosing_nodes(source, node) if isinstance(each, ast.For)]
    names = {each.id for target in loops for each in nodes_in(target, ast.Name)}
    return isinstance(node, ast.Name) and node.id in names


def _hit(source: SourceFile, node: ast.expr, score: str) -> Hit:
    text = source.text.segment(node)
    return Hit(
        message=f"The loss contains `{ast.unparse(node)}`, which is largest for a perfect prediction: training makes "
        f"this {score} smaller.",
        node=node,
        fix=Fix((source.text.replace(node, f"(1 - {text})"),), safe=False, description="Minimise its distance from 1"),
    )


RULE = Rule(
    required_words=(
        "osine|ssim|SSIM|psnr|iou|IoU|dice|Dice|jaccard|Jaccard|inter|union|sum(",
        "backward|training_step",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)


def dice(probabilities, masks, smooth=1.0):
    overlap = (probabilities * masks).sum((1, 2, 3))
    sizes = probabilities.sum((1, 2, 3)) + masks.sum((1, 2, 3))
    return ((2 * overlap + smooth) / (sizes + smooth)).mean()


images = torch.rand(64, 1, 8, 8)
masks = (images > 0.6).float()
model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1), nn.Sigmoid())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    for rows in torch.randperm(64).split(16):
        optimizer.zero_grad()
        loss = dice(model(images[rows]), masks[rows])
        loss.backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="LOS049",
    title="A score that should rise is minimised",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"loss = dice(": "loss = 1 - dice("}),
    fix="Minimise 1 minus the score.",
    rule=RULE,
)
