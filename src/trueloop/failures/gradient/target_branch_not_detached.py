"""The loss of a SimSiam model also trains the branch that is its target, so all outputs become equal.

What you see
    The loss falls to -1 within an epoch, the standard deviation of the representations falls towards 0, and a linear
    classifier on them is as good as guessing.

Why it happens
    SimSiam and BYOL pull the prediction of one view towards the projection of another, without negative pairs. If the
    projection is not detached, both sides move, and the shortest way to each other is a constant output.

Fix
    Detach the projection, the side that is not predicted:

        def distance(p, z):
            return -F.cosine_similarity(p, z.detach(), dim=-1).mean()

When this is fine
    - The target comes from ``torch.no_grad()``, or from a copy of the model that is an average (BYOL).
    - The loss has negative pairs, or terms for variance and covariance, as in SimCLR and VICReg.
    - The predictor belongs to a supervised model.

How it is detected
    Only the linter finds it, from the source code: a layer called "predictor" gets projections, and its output is
    compared with a projection by a cosine similarity or a distance of normalised vectors, in a function that detaches
    nothing. Nothing is reported if the file computes a cross-entropy or another loss next to it, or mentions variance,
    negatives or a queue.

References
    Chen and He, "Exploring Simple Siamese Representation Learning", 2021, section 4.1: without the stop-gradient "the
    outputs collapse to a constant vector", https://arxiv.org/abs/2011.10566
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, nodes_in, unparse, walk
from trueloop.failures.failure import Failure, Rule, Severity, changed

_PREDICTOR: Final = re.compile(r"predictor|^pred_?(head|mlp)$", re.IGNORECASE)
_SIMILARITY: Final = re.compile(r"cosine_similarity|CosineSimilarity|normalize|\.norm\(")
_CUT: Final = re.compile(r"detach|no_grad|\.data\b|stop_?grad|inference_mode")
_OTHER_LOSS: Final = re.compile(r"negative|queue|variance|vicreg|covariance|barlow|koleo|uniformity", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each comparison of a prediction with a projection that has a graph."""
    if source.mentions(_OTHER_LOSS):
        return
    for function in source.nodes_of(ast.FunctionDef):
        predictions, projections = _predictions(function)
        if predictions and _CUT.search(_text(function)):
            continue
        for call in walk(function) if predictions else ():
            if not isinstance(call, ast.Call) or len(call.args) < 2:
                continue
            first, second = (getattr(each, "id", "") for each in call.args[:2])
            if first in predictions and second in projections and _compares(source, call):
                fix = Fix(
                    (source.text.replace(call.args[1], f"{second}.detach()"),),
                    safe=False,
                    description="Detach the target",
                )
                yield Hit(
                    message=f"`{ast.unparse(call)}` also trains the branch of `{second}`, its target: without "
                    f"`{second}.detach()` all outputs become equal.",
                    node=call,
                    fix=fix,
                )


def _text(function: ast.FunctionDef) -> str:
    return "\n".join(map(unparse, function.body))


def _predictions(function: ast.FunctionDef) -> tuple[set[str], set[str]]:
    """Return the variables that hold outputs of a predictor, and its inputs."""
    predictions, projections = set[str](), set[str]()
    for each in nodes_in(function, ast.Assign):
        if len(each.targets) == 1:
            target, value = each.targets[0], each.value
            is_tuple = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            targets: list[Any] = target.elts if is_tuple else [target]  # type: ignore[attr-defined]
            for name, call in zip(targets, value.elts if is_tuple else [value], strict=False):  # type: ignore[attr-defined]
                if isinstance(call, ast.Call) and _PREDICTOR.search(last_name(call.func)) and len(call.args) == 1:
                    predictions.add(getattr(name, "id", ""))
                    projections.add(getattr(call.args[0], "id", ""))
    return predictions - {""}, projections - {""}


def _compares(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a cosine similarity, or a function of the program that computes one and detaches nothing."""
    name = last_name(call.func)
    if name == "cosine_similarity":
        return True
    functions = [each for each in source.nodes_of(ast.FunctionDef) if each.name == name]
    if functions:
        text = _text(functions[0])
        return len(functions) == 1 and bool(_SIMILARITY.search(text)) and not _CUT.search(text)
    made = [
        each.value for each in source.nodes_of(ast.Assign) if any(last_name(target) == name for target in each.targets)
    ]
    return len(made) == 1 and isinstance(made[0], ast.Call) and last_name(made[0].func) == "CosineSimilarity"


RULE = Rule(required_words=("redictor|pred_", "cosine|normalize|CosineSimilarity|norm("), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)


class SimSiam(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.predictor = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 16))

    def forward(self, first, second):
        z1, z2 = self.encoder(first), self.encoder(second)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return distance(p1, z2) / 2 + distance(p2, z1) / 2


def distance(p, z):
    return -nn.functional.cosine_similarity(p, z, dim=-1).mean()


x = torch.randn(256, 16)
model = SimSiam()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(20):
    optimizer.zero_grad()
    loss = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD021",
    title="The target of a SimSiam loss is not detached",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"cosine_similarity(p, z, dim=-1)": "cosine_similarity(p, z.detach(), dim=-1)"}),
    fix="Detach the target: `-F.cosine_similarity(p, z.detach(), dim=-1).mean()`.",
    rule=RULE,
)
