"""A triplet loss gets the negative sample in the place of the positive one, or one sample twice.

What you see
    The loss falls, and the embeddings separate, but similar samples are far from each other and different ones close:
    the retrieval accuracy is worse than with an untrained model. If the positive is the anchor itself, all samples move
    apart, also similar ones.

Why it happens
    ``triplet_margin_loss(anchor, positive, negative)`` takes three tensors of the same shape, so the order of the last
    two cannot be checked, nor that they are different.

Fix
    Pass the positive sample second.

        loss = nn.functional.triplet_margin_loss(anchor, positive, negative)

When this is fine
    - A loss of your own has its parameters in another order.
    - Anchor and positive are two calls of a model for the same input, which dropout makes different.

How it is detected
    Only the linter finds it, by the names of the arguments of PyTorch's triplet losses: the second one is called
    negative, and the third one positive. Also two arguments that are the same variable.

References
    torch.nn.TripletMarginLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.TripletMarginLoss.html
    Schroff et al., "FaceNet: A Unified Embedding for Face Recognition and Clustering", 2015, arXiv:1503.03832
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_FUNCTIONS: Final = ("triplet_margin_loss", "triplet_margin_with_distance_loss")
_MODULES: Final = ("TripletMarginLoss", "TripletMarginWithDistanceLoss")
_VARIABLES: Final = (ast.Name, ast.Attribute, ast.Subscript)
_NEGATIVE: Final = frozenset(("neg", "negs", "negative", "negatives"))
_POSITIVE: Final = frozenset(("pos", "positive", "positives"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each triplet loss whose positive and negative are swapped."""
    criteria = {
        ast.unparse(target)
        for node in source.nodes_of(ast.Assign)
        if isinstance(node.value, ast.Call)
        for target in node.targets
        if last_name(node.value.func) in _MODULES
    }
    for call in source.all_calls:
        inner = last_name(call.func.func) if isinstance(call.func, ast.Call) else ""
        if last_name(call.func) not in _FUNCTIONS and ast.unparse(call.func) not in criteria and inner not in _MODULES:
            continue
        given = {each.arg: each.value for each in call.keywords}
        first = call.args[0] if call.args else given.get("anchor")
        second = call.args[1] if len(call.args) > 1 else given.get("positive")
        third = call.args[2] if len(call.args) > 2 else given.get("negative")
        pairs = ((first, second, "the positive"), (first, third, "the negative"), (second, third, "the negative"))
        given_pairs = ((a, b, role) for a, b, role in pairs if a is not None and b is not None)
        same = next(((a, role) for a, b, role in given_pairs if _is_same(source, a, b)), None)
        if same is not None:
            yield Hit(
                message=f"`{ast.unparse(call)}` gets `{ast.unparse(same[0])}` twice: {same[1]} is equal to another "
                "sample, so one of the two distances is constant.",
                node=call,
            )
        elif second is not None and third is not None and _is(second, _NEGATIVE) and _is(third, _POSITIVE):
            edits = (
                source.text.replace(second, ast.unparse(third)),
                source.text.replace(third, ast.unparse(second)),
            )
            yield Hit(
                message=f"`{ast.unparse(second)}` is passed as the positive sample and `{ast.unparse(third)}` as the "
                "negative one: the loss moves different samples together.",
                node=call,
                fix=Fix(edits, safe=False, description="Swap the two arguments"),
            )


def _is_same(source: SourceFile, one: ast.expr, other: ast.expr) -> bool:
    """Return True if two arguments are one variable, perhaps under another name."""
    if nodes_in(one, ast.Call) or nodes_in(other, ast.Call):
        return False
    text = ast.unparse(one)
    return any(ast.unparse(each) == text for each in origins(source, other) if isinstance(each, _VARIABLES))


def _is(node: ast.expr, words: frozenset[str]) -> bool:
    """Return True if the names in an expression contain one of the words, and none of its opposite."""
    names = [last_name(each) for each in nodes_in(node, ast.Name, ast.Attribute)]
    found = {word for name in names for word in name_words(name)} & (_NEGATIVE | _POSITIVE)
    return bool(found) and found <= words


RULE = Rule(required_words=("triplet_margin|TripletMargin",), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(200, 8)
same = inputs + 0.1 * torch.randn(200, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
criterion = nn.TripletMarginLoss(margin=1.0)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for step in range(10):
    rows = torch.randperm(200)[:32]
    anchor, positive, negative = model(inputs[rows]), model(same[rows]), model(inputs[rows.roll(1)])
    loss = criterion(anchor, negative, positive)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS019",
    title="Samples of a triplet loss are swapped or the same",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(BAD, {"criterion(anchor, negative, positive)": "criterion(anchor, positive, negative)"}),
    fix="Pass the anchor, another sample of its class and one of another class, in this order.",
    rule=RULE,
)
