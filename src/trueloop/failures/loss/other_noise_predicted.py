"""A diffusion model is trained to predict noise that is not the noise in its input.

What you see
    The loss stays near 1, the variance of the noise, and generated samples are noise.

Why it happens
    The function that adds noise draws it itself, and the training step draws another one as the target. No model can
    predict random numbers that do not depend on its input; the best answer is 0.

Fix
    Draw the noise once, pass it to the function that adds it, and predict it:

        noise = torch.randn_like(x)
        loss = mse_loss(model(q_sample(x, t, noise), t), noise)

    Or let the function return the noise that it has drawn.

When this is fine
    - The function that adds noise gets the target, or returns it.
    - The random target stands for data, as in a test of speed.

How it is detected
    Only the linter finds it, from the source code: a loss whose target is drawn in the same function, by ``randn_like``
    or, if it is called noise or eps, by ``randn``, and is used for nothing else. It is reported if the other side of
    the loss depends on other noise: on a call of a function that draws it, or on ``randn_like`` in a sum. A squared
    difference counts as a loss.

References
    Ho et al. 2020, "Denoising Diffusion Probabilistic Models", algorithm 1, https://arxiv.org/abs/2006.11239
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_in, function_of, is_loss_call, single_assignments
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_NOISE: Final = re.compile(r"noise|(^|_)eps(ilon)?($|_)", re.IGNORECASE)
_DRAWING: Final = frozenset(("randn", "randn_like", "normal"))
_MAX_DEPTH: Final = 4


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loss whose target is noise of its own."""
    drawing = {
        each.name
        for each in source.nodes_of(ast.FunctionDef)
        if each.name != "forward" and any(last_name(call.func) in _DRAWING for call in nodes_in(each, ast.Call))
    }
    for loss, pair in _compared(source):
        function = function_of(source, loss)
        for target, other in (pair, pair[::-1]):
            if isinstance(target, ast.Name) and _is_drawn_for_loss(source, function, target):
                adding = _noise_added(source, function, other, drawing)
                if adding is not None:
                    yield Hit(
                        message=f"`{target.id}` is not the noise in the input: `{last_name(adding.func)}` draws its "
                        "own, so this loss asks for random numbers that the model cannot know.",
                        node=loss,
                        related=((adding, "other noise is added here"),),
                    )


def _compared(source: SourceFile) -> Iterator[tuple[ast.expr, tuple[ast.expr, ast.expr]]]:
    """Yield each loss with its two arguments, and each difference that is squared, or whose size is taken."""
    for call in source.all_calls:
        if is_loss_call(source, call) and len(call.args) > 1:
            yield call, (call.args[0], call.args[1])
    for node in source.nodes_of(ast.BinOp):
        match source.parents.get(id(node)):
            case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=2)):
                pass
            case ast.Attribute(attr="pow" | "square" | "abs"):
                pass
            case _:
                continue
        if isinstance(node.op, ast.Sub):
            yield node, (node.left, node.right)


def _is_drawn_for_loss(source: SourceFile, function: Any, target: ast.Name) -> bool:
    """Return True for noise that a function draws and reads only once."""
    values = [each for each in assigned_in(function, target.id) if function_of(source, each) is function]
    drawn = last_name(values[0].func) if len(values) == 1 and isinstance(values[0], ast.Call) else ""
    named = [each for each in nodes_in(function, ast.Name) if each.id == target.id and isinstance(each.ctx, ast.Load)]
    reads = [each for each in named if function_of(source, each) is function]
    is_noise = drawn.endswith("_like") or bool(_NOISE.search(target.id))  # made-up data are no noise
    return drawn in _DRAWING and len(reads) == 1 and is_noise


def _noise_added(source: SourceFile, function: Any, node: ast.AST, drawing: set[str]) -> ast.Call | None:
    """Return the call that an expression depends on and that draws noise; None if there is none."""
    pending, seen = [node], set[str]()
    for _ in range(_MAX_DEPTH):
        following: list[ast.AST] = []
        for each in pending:
            for call in nodes_in(each, ast.Call):
                is_added = last_name(call.func) in _DRAWING and _is_added(source, call)
                if last_name(call.func) in drawing or is_added:
                    return call
            names = {name.id for name in nodes_in(each, ast.Name)} - seen
            seen |= names
            following += [value for target, value in single_assignments(function) if getattr(target, "id", "") in names]
        pending = following
    return None


def _is_added(source: SourceFile, call: ast.Call) -> bool:
    """Return True for noise, or a multiple of it, that is a term of a sum."""
    node: ast.AST | None = source.parents.get(id(call))
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        node = source.parents.get(id(node))
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


RULE = Rule(required_words=("randn_like|randn&noise|randn&eps|normal(&noise|normal(&eps", "loss|crit"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
kept = torch.cumprod(1 - torch.linspace(0.001, 0.1, 50), 0)
model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def add_noise(x, t):
    share = kept[t].unsqueeze(1)
    return share.sqrt() * x + (1 - share).sqrt() * torch.randn_like(x)


for step in range(30):
    x = torch.randn(64, 1).expand(64, 4)
    t = torch.randint(0, 50, (64,))
    noise = torch.randn_like(x)
    inputs = torch.cat([add_noise(x, t), t.unsqueeze(1) / 50], dim=1)
    loss = nn.functional.mse_loss(model(inputs), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="LOS039",
    title="The predicted noise is not the noise in the input",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "def add_noise(x, t):": "def add_noise(x, t, noise):",
            "(1 - share).sqrt() * torch.randn_like(x)": "(1 - share).sqrt() * noise",
            "add_noise(x, t), t": "add_noise(x, t, noise), t",
        },
    ),
    fix="Add the same noise that is the target of the loss.",
    rule=RULE,
)
