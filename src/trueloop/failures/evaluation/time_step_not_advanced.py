"""A loop over the time steps of a diffusion model gives the model the same time step every time.

What you see
    The loss of each time step is nearly the same, or that of the last one for all; a likelihood in bits per dimension
    is far off. In a sampler, the samples stay noise or are blurred.

Why it happens
    A tensor with one time step for each sample is filled before the loop, and the loop variable only chooses where the
    result is stored. The model accepts any step, so every iteration repeats the first one.

Fix
    Fill the tensor in the loop:

        for i in reversed(range(T)):
            t = torch.full((len(x),), i)
            losses[:, i] = loss_of(model, x, t)

When this is fine
    - The tensor is changed in place in the loop: ``t.fill_(i)``, ``t -= 1``.
    - The call gets the loop variable too, and the tensor is the end of the interval, as in a flow map.
    - The loop repeats one step on purpose, such as several draws of noise: it is not over the steps themselves.

How it is detected
    Only the linter finds it: a loop over ``range`` calls something with a tensor named after time steps that was filled
    before the loop, with a number in which the limit of the range occurs, and that the loop never changes. The
    call gets neither the loop variable nor a tensor that is filled with it.

References
    tqch/ddpm-torch#20, bits per dimension of a fixed time step, https://github.com/tqch/ddpm-torch/issues/20
    Ho et al., "Denoising diffusion probabilistic models", algorithm 2, https://arxiv.org/abs/2006.11239
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.loops import assigned_names
from trueloop.analysis.queries.possible_values import possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TIME: Final = re.compile(r"(^|_)(t|ts|tt|tau|time|times|time_?steps?|steps?|sigmas?|noise_levels?)($|_)")
_FILLED: Final = frozenset(("full", "full_like", "ones", "ones_like", "fill_", "new_full", "tensor", "LongTensor"))
_CONVERSIONS: Final = frozenset((
    "device", "expand", "float", "int", "item", "len", "long", "repeat", "reshape", "size", "to", "type", "unsqueeze",
    "view",
))  # fmt: skip
_OF_SIZE: Final = frozenset(("full", "ones", "zeros", "empty", "new_full", "expand", "repeat"))
_REPORTING: Final = re.compile(r"print|log|write|add_|append|set_")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each tensor of time steps that a loop over the time steps never changes."""
    reported: set[int] = set()
    for loop in source.nodes_of(ast.For):
        limits = _limits(loop.iter)
        varying = _varying(loop) if limits else set[str]()
        for call in (each for statement in loop.body for each in nodes_in(statement, ast.Call)) if limits else ():
            filled = _filled_before(source, call, loop, limits)
            if filled is None or id(filled) in reported or _names(call) & varying or not _is_computation(call):
                continue
            reported.add(id(filled))
            yield Hit(
                message=f"`{ast.unparse(call)}` gets the same time step in every iteration: "
                f"`{ast.unparse(filled)}` is computed once before the loop, and never follows "
                f"`{ast.unparse(loop.target)}`.",
                node=filled,
                related=((call, "used here"), (loop, "the loop over the time steps")),
            )


def _limits(iterable: ast.expr) -> set[str]:
    """Return the variables and attributes in the ``range`` over which a loop runs; an empty set for other loops."""
    ranges = [each for each in nodes_in(iterable, ast.Call) if last_name(each.func) == "range"]
    return {text for each in ranges for argument in each.args for text in _paths(argument)}


def _paths(node: ast.expr) -> set[str]:
    """Return the variables and attributes that an expression reads, but not the size of a tensor."""
    sizes = {
        id(part)
        for call in nodes_in(node, ast.Call)
        if last_name(call.func) in _OF_SIZE
        for size in (call.args[:1] if last_name(call.func) in ("full", "new_full") else call.args)
        for part in nodes_in(size, ast.Name, ast.Attribute)
    }
    read = [each for each in nodes_in(node, ast.Name, ast.Attribute) if id(each) not in sizes]
    functions = [each.func for each in nodes_in(node, ast.Call)]
    called = {id(part) for each in functions if dotted_name(each) for part in nodes_in(each, ast.Name, ast.Attribute)}
    called |= set(map(id, functions))
    return {ast.unparse(each) for each in read if id(each) not in called} - {"self", "args", "torch", "len"}


def _varying(loop: ast.For) -> set[str]:
    """Return the loop variable, and the variables of the loop that are another form of it."""
    found = assigned_names(loop.target)
    for each in nodes_in(loop, ast.Assign):
        called = {last_name(call.func) for call in nodes_in(each.value, ast.Call)}
        if _names(each.value) & found and called <= _FILLED | _CONVERSIONS:
            found |= {name for target in each.targets for name in assigned_names(target)}
    return found


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name)}


def _filled_before(source: SourceFile, call: ast.Call, loop: ast.For, limits: set[str]) -> ast.expr | None:
    """Return the expression before a loop that fills a tensor of time steps which a call in the loop gets."""
    for each in (*call.args, *(keyword.value for keyword in call.keywords)):
        if not isinstance(each, ast.Name) or not _TIME.search(each.id.lower()) or _is_changed(loop, each.id):
            continue
        values = possible_values(source, each)
        value = values[0] if len(values) == 1 and not encloses(loop, values[0]) else None
        made = {last_name(inner.func) for inner in nodes_in(value, ast.Call)} if value is not None else set[str]()
        if value is not None and made & _FILLED and _paths(value) & limits:
            return value
    return None


def _is_changed(loop: ast.For, name: str) -> bool:
    """Return True if a loop assigns a variable, its items, or calls a method of it that changes it in place."""
    for each in nodes_in(loop, ast.Name, ast.Attribute, ast.Subscript, ast.keyword):
        match each:
            case ast.Name(id=found, ctx=ast.Store()) | ast.Subscript(value=ast.Name(id=found), ctx=ast.Store()):
                is_write = True
            case ast.Attribute(value=ast.Name(id=found) | ast.Subscript(value=ast.Name(id=found)), attr=attr):
                is_write = attr.endswith("_") or attr == "data"
            case ast.keyword(arg="out", value=ast.Name(id=found)):
                is_write = True
            case _:
                continue
        if is_write and found == name:
            return True
    return False


def _is_computation(call: ast.Call) -> bool:
    """Return True for a call with another argument, which is no message or record."""
    return len(call.args) + len(call.keywords) > 1 and not _REPORTING.search(last_name(call.func))


RULE: Final = Rule(required_words=("range(", "full|ones|tensor(|Tensor(|fill_(", "torch"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
T = 20
kept = torch.cumprod(1 - torch.linspace(0.001, 0.2, T), dim=0)
model = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)


def loss_of(x, t):
    noise = torch.randn_like(x)
    noisy = kept[t, None].sqrt() * x + (1 - kept[t, None]).sqrt() * noise
    return (model(torch.cat((noisy, t[:, None] / T), dim=1)) - noise).pow(2).mean(dim=1)


for step in range(50):
    loss = loss_of(torch.randn(64, 2), torch.randint(T, (64,))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
x = torch.randn(100, 2)
losses = torch.zeros(100, T)
t = torch.full((100,), T - 1)
with torch.no_grad():
    for i in reversed(range(T)):
        losses[:, i] = loss_of(x, t)
print("loss of each time step", losses.mean(dim=0))
"""

FAILURE = Failure(
    code="EVL034",
    title="The time step never changes in a loop over the time steps",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"losses[:, i] = loss_of(x, t)": "losses[:, i] = loss_of(x, torch.full((100,), i))"}),
    fix="Fill the tensor of time steps in the loop, from the loop variable.",
    rule=RULE,
)
