"""A ranking or contrastive loss raises the score of negative pairs, or lowers that of positive ones.

What you see
    The loss falls, but a search finds the wrong items: negatives are as near as positives, or nearer. With a margin,
    the loss reaches 0 although the ranking is the worst possible.

Why it happens
    Scores and distances need opposite signs. The score of a positive pair shall rise and that of a negative one fall;
    a distance is the other way round. With ``relu(negative - positive + margin)`` for distances, or two terms
    ``logsigmoid(positive) + logsigmoid(negative)`` without a minus in the second one, every number is plausible.

Fix
    Write the difference so that it gets smaller when the pairs are right.

        loss = F.relu(positive_distance - negative_distance + margin).mean()
        loss = -(F.logsigmoid(positive_score) + F.logsigmoid(-negative_score)).mean()

When this is fine
    - The value is maximised, or the gradient is reversed.
    - The names say something else, such as the positive class of a classifier.

How it is detected
    Only the linter finds it: a value that is minimised contains a positive and a negative pair, by the names of their
    variables, through ``relu``, ``logsigmoid``, ``softplus``, a sum or a mean. Both are scores (from ``@``, ``bmm``,
    ``einsum``, a sum of products or a cosine similarity, or by their name), or both are distances (from ``cdist``,
    ``pairwise_distance``, a norm or squared difference, or by their name), and one or both have the wrong sign.

References
    Mikolov et al., 2013, "Distributed Representations of Words and Phrases and their Compositionality", arXiv:1310.4546
    Rendle et al., 2009, "BPR: Bayesian Personalized Ranking from Implicit Feedback", arXiv:1205.2618
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.queries.signed_terms import Term, may_ascend, minimised_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_POSITIVE: Final = frozenset(("pos", "positive", "positives", "ap", "dp", "dap"))
_NEGATIVE: Final = frozenset(("neg", "negs", "negative", "negatives", "an", "dn", "dan"))
_DISTANCES: Final = frozenset(("cdist", "pairwise_distance", "norm", "PairwiseDistance"))
_SCORES: Final = frozenset(("bmm", "matmul", "einsum", "cosine_similarity", "CosineSimilarity", "mm", "dot", "inner"))
_SCORE_NAME: Final = re.compile(r"score|sim|(^|_)dot", re.IGNORECASE)
_DISTANCE_NAME: Final = re.compile(r"dist|(^|_)d(_|$)|(^|_)d?[ap][pn](_|$)", re.IGNORECASE)
_LOSS_NAME: Final = re.compile(r"loss|weight|prob|count|ratio|num", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each pair of scores or distances in a loss that is pulled the wrong way."""
    if may_ascend(source):
        return
    reported = set[int]()
    for terms in minimised_terms(source):
        found: dict[tuple[str, bool], list[Term]] = defaultdict(list)
        for term in terms:
            name = last_name(term.node) if isinstance(term.node, ast.Name) else ""
            words = name_words(name)
            is_positive = bool(words & _POSITIVE)
            kind = _kind(source, term.node) if is_positive is not bool(words & _NEGATIVE) else ""
            if kind and not _LOSS_NAME.search(name):
                found[kind, is_positive].append(term)
        for kind in ("score", "distance"):
            hit = _judge(kind, found[kind, True], found[kind, False])
            if hit is not None and id(hit.node) not in reported:
                reported.add(id(hit.node))
                yield hit


def _judge(kind: str, positives: list[Term], negatives: list[Term]) -> Hit | None:
    """Return a finding if the terms of one value have the wrong sign; None if they may be right, or are mixed."""
    signs = {each.sign for each in positives}, {each.sign for each in negatives}
    if not all(len(each) == 1 for each in signs):
        return None
    rises = -1 if kind == "score" else 1  # the sign of a positive pair that is right
    right = signs[0] == {rises}, signs[1] == {-rises}
    if all(right):
        return None
    first, second = ast.unparse(positives[0].node), ast.unparse(negatives[0].node)
    wrong = negatives[0] if right[0] else positives[0]
    if kind == "score":
        says = (f"lowers the score `{first}` of positive pairs", f"raises the score `{second}` of negative pairs")
    else:
        says = (f"moves positive pairs apart (`{first}`)", f"moves negative pairs together (`{second}`)")
    does = " and ".join(text for text, is_right in zip(says, right, strict=True) if not is_right)
    return Hit(message=f"This loss {does}.", node=wrong.added)


def _kind(source: SourceFile, node: ast.expr) -> str:
    """Return "score" or "distance" for what a variable contains; "" if it is not known."""
    name = last_name(node)
    kinds = {"distance"} if _DISTANCE_NAME.search(name) else {"score"} if _SCORE_NAME.search(name) else set[str]()
    for value in [each for each in origins(source, node, 4) if each is not node]:
        called = {last_name(each.func) for each in nodes_in(value, ast.Call)}
        products = nodes_in(value, ast.BinOp)
        if "neg" in called or any(map(_is_negated, nodes_in(value, ast.UnaryOp))):
            return ""
        if called & _DISTANCES or any(map(_is_squared_difference, (*nodes_in(value, ast.Call), *products))):
            kinds.add("distance")
        is_product = "sum" in called and any(isinstance(each.op, ast.Mult) for each in products)
        if is_product or called & _SCORES or any(isinstance(each.op, ast.MatMult) for each in products):
            kinds.add("score")
    return kinds.pop() if len(kinds) == 1 else ""


def _is_negated(node: ast.UnaryOp) -> bool:
    return isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant)


def _is_squared_difference(node: ast.expr) -> bool:
    """Return True for ``(a - b) ** 2`` and ``(a - b).pow(2)``."""
    match node:
        case ast.BinOp(left=ast.BinOp(op=ast.Sub()), op=ast.Pow()):
            return True
        case ast.Call(func=ast.Attribute(value=ast.BinOp(op=ast.Sub()), attr="pow" | "square" | "abs")):
            return True
        case _:
            return False


RULE: Final = Rule(
    required_words=("backward(", "pos|ap|dp", "neg|an|dn", "relu|sigmoid|softplus|clamp|margin"), find=find
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(300, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for step in range(30):
    rows = torch.randperm(300)[:32]
    anchor, near, far = model(inputs[rows]), model(inputs[rows] + 0.1), model(inputs[rows.roll(1)])
    positive_distance = (anchor - near).pow(2).sum(1)
    negative_distance = (anchor - far).pow(2).sum(1)
    loss = torch.relu(negative_distance - positive_distance + 0.5).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="LOS060",
    title="Positive pairs are moved apart, or negative pairs together",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"negative_distance - positive_distance": "positive_distance - negative_distance"}),
    fix="Lower the distance of positive pairs, or raise their score, and do the opposite for negative pairs.",
    rule=RULE,
)
