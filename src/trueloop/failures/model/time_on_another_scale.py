"""A network gets the time as a share of all steps in training, and the number of the step in the sampler.

What you see
    The training loss is good, but the samples are noise, all alike, or far away from the data. More training, and
    another schedule, do not help.

Why it happens
    Training divides the step by the number of steps, ``net(x_t, t / steps)``, so the network only knows numbers from 0
    to 1. The sampler is another function, often in another file, and passes ``t`` itself: nearly all of its calls are
    far outside of what the network was trained on. Both are tensors of the same shape, so nothing raises an error.

Fix
    Pass the same number in both places, or divide in ``forward``:

        t = torch.full((n,), i / steps)
        noise = net(x, t)

When this is fine
    - The network, or a function around it, divides the time itself in one of the two cases.
    - The two calls are of different networks.

How it is detected
    Only the linter finds it, from the source code: two calls of something with the same name, one of which builds
    gradients and the other not, get at one position the number of a step (of ``randint``, or the variable of a loop
    over ``range``) in one call, and in the other such a number divided by something, or one between 0 and 1 (``rand``,
    a loop over ``linspace(0, 1, n)``). All calls with gradients, and all without, must agree.

References
    Ho et al., "Denoising diffusion probabilistic models", algorithms 1 and 2, https://arxiv.org/abs/2006.11239
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.queries.possible_values import (
    is_without_gradients,
    loops_around,
    possible_values,
    without_cycles,
)
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_STEP: Final = "the number of a step"
_SHARE: Final = "a number from 0 to 1"
_SHAPING: Final = frozenset((
    "float", "long", "int", "to", "type", "unsqueeze", "squeeze", "view", "reshape", "expand", "repeat", "cuda",
))  # fmt: skip
_MAKING: Final = frozenset(("tensor", "as_tensor", "FloatTensor", "LongTensor", "Tensor", "float", "int", "array"))
_PASSING: Final = frozenset(("reversed", "tqdm", "list", "trange", "track", "iter"))
_NAME: Final = re.compile(
    r"(^|_)(t|ts|tt|tau|time|times|time_?steps?|steps?|i|k|n|j|s|idx|index|t_\w+)($|_)", re.IGNORECASE
)
_NO_MODEL: Final = re.compile(r"^(print|log|append|add_\w+|max|min|range|gather|\w*sample\w*|extract|get_\w+|full\w*)$")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call without gradients that gets the time on another scale than the calls with gradients."""
    calls: dict[tuple[str, bool, int | str], list[tuple[ast.Call, ast.expr, str]]] = {}
    for call in source.all_calls:
        name = last_name(call.func)
        if not name or len(call.args) + len(call.keywords) < 2 or _NO_MODEL.match(name):
            continue
        if dotted_name(call.func).startswith(("torch.", "np.", "F.", "math.")) or name in definitions(source).functions:
            continue
        for place, argument in [*enumerate(call.args), *((each.arg or "", each.value) for each in call.keywords)]:
            scale = _scale(source, argument) if place else None
            if scale:
                key = (name, isinstance(call.func, ast.Attribute), place)
                calls.setdefault(key, []).append((call, argument, scale))
    for found in calls.values():
        yield from _compare(source, found)


def _compare(source: SourceFile, found: list[tuple[ast.Call, ast.expr, str]]) -> Iterator[Hit]:
    """Yield the calls without gradients if all of them get another scale than all others."""
    sampling = [each for each in found if is_without_gradients(source, each[0])]
    training = [each for each in found if each not in sampling]
    scales = [{scale for _, _, scale in each} for each in (training, sampling)]
    if any(len(each) != 1 for each in scales) or scales[0] == scales[1]:
        return
    trained = training[0]
    for call, _, scale in sampling:
        yield Hit(
            message=f"`{ast.unparse(call)}` gets {scale} as time, but in training it is {trained[2]}, "
            f"`{ast.unparse(trained[1])}`: the network has never seen such times.",
            node=call,
            related=((trained[0], "the call of the training"),),
        )


@without_cycles(None)
def _scale(source: SourceFile, node: ast.expr) -> str | None:
    """Return whether an expression is the number of a step or a share of all steps; None if it is unknown."""
    match node:
        case ast.Name():
            return _of_name(source, node)
        case ast.Subscript(value=inner, slice=ast.Tuple() | ast.Slice()) | ast.List(elts=[inner]):
            return _scale(source, inner)
        case ast.BinOp(left=left, op=op, right=right):
            return _of_operation(source, left, op, right)
        case ast.Call():
            return _of_call(source, node)
        case _:
            return None


def _of_name(source: SourceFile, node: ast.Name) -> str | None:
    """Return the scale of a variable: of all its values, or of the loop that counts it."""
    values = possible_values(source, node)
    scales = {_scale(source, each) for each in values}
    if values:
        return scales.pop() if len(scales) == 1 else None
    for loop in loops_around(source, node):
        if node.id in assigned_names(loop.target):
            return _of_loop(source, loop, node.id)
    return None


def _of_loop(source: SourceFile, loop: Any, name: str) -> str | None:
    """Return the scale of a variable that a loop assigns."""
    iterable: Any = loop.iter
    while isinstance(iterable, ast.Call) and last_name(iterable.func) in _PASSING and iterable.args:
        iterable = iterable.args[0]
    if isinstance(loop.target, ast.Tuple) or not isinstance(iterable, ast.Call):
        return None
    called, ends = last_name(iterable.func), [getattr(each, "value", None) for each in iterable.args[:2]]
    if called == "linspace" and all(isinstance(each, int | float) and 0 <= each <= 1 for each in ends):
        return _SHARE
    return _STEP if called in ("range", "trange") and _NAME.search(name) else None


def _of_operation(source: SourceFile, left: ast.expr, op: ast.operator, right: ast.expr) -> str | None:
    scale, other = _scale(source, left), _scale(source, right)
    match op:
        case ast.Div():
            return _SHARE if scale == _STEP and other is None else None
        case ast.Add() | ast.Sub() if scale is None or other is None:
            return scale or other
        case ast.Mult() if isinstance(left, ast.List) or {"ones", "ones_like"} & _called(left, right):
            return scale or other
        case _:
            return None


def _called(*nodes: ast.expr) -> set[str]:
    return {last_name(each.func) for node in nodes for each in nodes_in(node, ast.Call)}


def _of_call(source: SourceFile, node: ast.Call) -> str | None:
    name = last_name(node.func)
    if name in ("randint", "randint_like"):
        return _STEP
    if name in ("rand", "rand_like"):
        return _SHARE
    if name in ("full", "full_like", "new_full"):
        filled = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "fill_value")]
        return _scale(source, filled[0]) if filled else None
    if name in _MAKING and node.args:
        return _scale(source, node.args[0])
    return _scale(source, node.func.value) if isinstance(node.func, ast.Attribute) and name in _SHAPING else None


RULE = Rule(
    required_words=(
        "no_grad|inference_mode",
        "randint|rand(",
        "range(|linspace(",
        "backward(",
        "noise|diffus|denois|velocity|flow|beta",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
steps = 50
kept = torch.cumprod(1 - torch.linspace(0.001, 0.1, steps), dim=0)
net = nn.Bilinear(2, 1, 2)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(40):
    clean = 1 + 0.3 * torch.randn(64, 2)
    t = torch.randint(0, steps, (64, 1))
    noise = torch.randn_like(clean)
    noised = kept[t].sqrt() * clean + (1 - kept[t]).sqrt() * noise
    loss = nn.functional.mse_loss(net(noised, t / steps), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
x = torch.randn(100, 2)
with torch.no_grad():
    for i in reversed(range(1, steps)):
        share = kept[i] / kept[i - 1]
        noise = net(x, torch.full((100, 1), float(i)))
        x = (x - (1 - share) / (1 - kept[i]).sqrt() * noise) / share.sqrt()
        x = x + (1 - share).sqrt() * torch.randn_like(x)
print(x.mean(dim=0))
"""

FAILURE = Failure(
    code="MDL048",
    title="The time has another scale in the sampler than in training",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"float(i))": "i / steps)"}),
    fix="Pass the time on the same scale in both places.",
    rule=RULE,
)
