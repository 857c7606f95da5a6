"""A diffusion model is trained on inputs with the noise of one step, not of all steps up to t.

What you see
    The loss is small or constant for every t, and the samples are noise, or hardly differ from what the sampler began
    with. The noised examples look clean for every t.

Why it happens
    ``alphas = 1 - betas`` is the share of the signal that one step keeps. What is left after t steps is their product,
    ``torch.cumprod(alphas, 0)``. Both tensors have the same length, so ``alphas[t]`` raises no error, and the model
    never sees an input as noisy as those that the sampler begins with.

Fix
    Noise the examples with the cumulative product:

        kept = alphas_cumprod[t].view(-1, 1)
        x_t = kept.sqrt() * x_0 + (1 - kept).sqrt() * noise

When this is fine
    - The line makes one step from the example of the step before, in a loop over all steps.
    - The schedule is made of the cumulative product itself, as the cosine schedule.

How it is detected
    Only the linter finds it, from the source code: a sum of ``sqrt(a) * x`` and ``sqrt(1 - a) * noise``, where ``a`` is
    an item of one minus the betas, the position is drawn by ``randint`` or is a parameter, and the sum does not replace
    ``x`` itself.

References
    Ho et al., "Denoising diffusion probabilistic models", equation 4, https://arxiv.org/abs/2006.11239
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.possible_values import enclosing_nodes, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_NOISE: Final = re.compile(r"noise|(^|_)eps(ilon)?($|_)|randn|(^|\.)z$", re.IGNORECASE)
_PREVIOUS: Final = re.compile(r"prev|last|t_?1|(^|_)xs?_?t$", re.IGNORECASE)
_LIBRARIES: Final = frozenset(("torch", "np", "math", "self", "utils"))
_BETA: Final = re.compile(r"beta", re.IGNORECASE)
_INDEXING: Final = frozenset(("gather", "index_select", "take", "extract", "get_index_from_list", "_extract"))
_SHAPING: Final = frozenset((
    "view", "reshape", "unsqueeze", "to", "float", "expand", "squeeze", "clone", "cuda", "cpu", "detach", "contiguous",
))  # fmt: skip
_MAX_DEPTH: Final = 6


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each noised example that keeps the share of a single step."""
    for node in source.nodes_of(ast.BinOp):
        match node:
            case ast.BinOp(
                op=ast.Add(),
                left=ast.BinOp(op=ast.Mult(), left=one, right=other),
                right=ast.BinOp(op=ast.Mult(), left=third, right=fourth),
            ):
                pass
            case _:
                continue
        parts = [(one, other), (third, fourth)]
        noised = [index for index, pair in enumerate(parts) if any(map(_is_noise, pair))]
        if len(noised) != 1 or _replaces_itself(source, node):
            continue
        for factor, example in _orders(parts[1 - noised[0]]):
            position = _position(source, factor)
            if position is None or _is_one_step(source, node, example, position):
                continue
            yield Hit(
                message=f"`{source.text.segment(node)}` keeps the share of one step, `1 - beta`, whatever the number "
                "of steps is: use the cumulative product of these shares.",
                node=node,
            )


def _orders(pair: tuple[ast.expr, ast.expr]) -> Iterator[tuple[ast.expr, ast.expr]]:
    yield pair
    yield pair[1], pair[0]


def _is_noise(node: ast.expr) -> bool:
    name = last_name(node.func if isinstance(node, ast.Call) else node)
    return bool(_NOISE.search(name))


def _position(source: SourceFile, node: ast.expr, depth: int = _MAX_DEPTH) -> ast.expr | None:
    """Return the position of the root of an item of one minus the betas; None for any other expression."""
    values: list[ast.expr] = []
    match node:
        case ast.Subscript(value=inner, slice=ast.Name() | ast.Attribute() as position) if _is_rest(
            source, inner, depth
        ):
            return position
        case ast.Subscript(value=inner) | ast.BinOp(op=ast.Pow(), left=inner):
            values = [inner]
        case ast.Call(func=func) if last_name(func) in ("sqrt", *_SHAPING):
            values = _arguments(node)[:1]
        case ast.Call(func=func) if last_name(func) in _INDEXING:
            tensor, *others = _arguments(node)
            return others[-1] if others and _is_rest(source, tensor, depth) else None
        case ast.Name() | ast.Attribute():
            values = possible_values(source, node)
        case _:
            pass
    found = [_position(source, each, depth - 1) for each in values] if depth else []
    return found[0] if found and None not in found else None


def _is_rest(source: SourceFile, node: ast.expr, depth: int) -> bool:
    """Return True for one minus the betas, or their roots."""
    match node:
        case ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1 | 1.0), right=right):
            return bool(_BETA.search(last_name(right)))
        case ast.Call(func=func) if last_name(func) in ("sqrt", *_SHAPING):
            return depth > 0 and all(_is_rest(source, each, depth - 1) for each in _arguments(node)[:1])
        case ast.Name() | ast.Attribute():
            values = possible_values(source, node) if depth else []
            return bool(values) and all(_is_rest(source, each, depth - 1) for each in values)
        case _:
            return False


def _arguments(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call, after the object of a method of a tensor."""
    is_method = isinstance(call.func, ast.Attribute) and last_name(call.func.value) not in _LIBRARIES
    return [call.func.value, *call.args] if is_method and isinstance(call.func, ast.Attribute) else list(call.args)


def _replaces_itself(source: SourceFile, node: ast.expr) -> bool:
    """Return True for ``x = a * x + b * noise``, one step of a loop."""
    parent: Any = source.parents.get(id(node))
    targets = {dotted_name(each) for each in parent.targets} if isinstance(parent, ast.Assign) else set[str]()
    return bool(targets & {dotted_name(each) for each in nodes_in(node, ast.Name, ast.Attribute)})


def _is_one_step(source: SourceFile, node: ast.expr, example: ast.expr, position: ast.expr) -> bool:
    """Return True if the example is that of the step before, by its name or as a loop counts the positions."""
    if isinstance(example, ast.Subscript) or _PREVIOUS.search(last_name(example)):
        return True
    loops = [each.target for each in enclosing_nodes(source, node) if isinstance(each, ast.For)]
    return any(each.id == last_name(position) for target in loops for each in nodes_in(target, ast.Name))


RULE = Rule(required_words=("beta", "sqrt|** 0.5|**0.5", "noise|eps|randn"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
betas = torch.linspace(0.001, 0.1, 50)
alphas = 1 - betas
alphas_cumprod = torch.cumprod(alphas, 0)
model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(30):
    clean = 1 + 0.3 * torch.randn(64, 2)
    t = torch.randint(0, 50, (64,))
    noise = torch.randn_like(clean)
    kept = alphas[t].unsqueeze(1)
    noised = kept.sqrt() * clean + (1 - kept).sqrt() * noise
    loss = nn.functional.mse_loss(model(torch.cat([noised, t.unsqueeze(1) / 50], dim=1)), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="LOS052",
    title="Examples of a diffusion model get the noise of one step",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"kept = alphas[t]": "kept = alphas_cumprod[t]"}),
    fix="Use the cumulative product of the alphas: torch.cumprod(1 - betas, 0)[t].",
    rule=RULE,
)
