"""A hook is registered in every turn of a loop, and never removed.

What you see
    Every iteration takes a little longer than the one before, and memory grows; what the hooks do, scaling a gradient
    or keeping a feature, is done twice, three times, a hundred times.

Why it happens
    A module takes any number of hooks and runs them all. Without the handle that ``register_forward_hook`` returns
    nobody can take one off again.

Fix
    Register once, before the loop; or keep the handle and call ``handle.remove()`` in the same turn.

When this is fine
    A hook for each of several layers, in a loop over layers; a handle that is kept, whose ``remove()`` may come later;
    a model that is made in the same turn; hooks of activations, which die with their graph. Found in the text only:
    where the handle is thrown away, the module is the same in every turn, and a model is called in that turn.

References
    nn.Module.register_forward_hook, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    huggingface/peft#2761: "forward hooks would accumulate during generation, since one hook per forward step was being
    registered", https://github.com/huggingface/peft/pull/2761
    facebookresearch/fairscale#1143, "Cleared backward hooks to avoid accumulating over iterations",
    https://github.com/facebookresearch/fairscale/pull/1143
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import PART, Kind
from trueloop.analysis.loop_invariance import stored, words
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.loops import is_statement
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.source_text import Fix, dotted
from trueloop.failures.failure import Failure, Rule, Severity

REGISTERING: Final = frozenset((
    "register_forward_hook", "register_forward_pre_hook", "register_backward_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook",
))  # fmt: skip


def find(source: Source) -> Iterator[Hit]:
    """Yield each registration whose handle is thrown away, on one module, as often as a model is called."""
    for hooked in source.acts(OpKind.BOUND):
        plain = isinstance(hooked.statement, ast.Expr) and hooked.statement.value is hooked.node
        if hooked.word not in REGISTERING or not plain or not hooked.loops or hooked.subject.kind is not Kind.MODEL:
            continue
        loop = hooked.loops[-1]
        if loop.once() or not is_statement(loop.node) or not hooked.always_in(loop):
            continue
        call = next((each for each in source.run_of(hooked) if each.act is OpKind.CALLED and each.beside(hooked)), None)
        if call is None or not _stays(source, hooked, loop):
            continue
        yield Hit(
            message="Another hook is registered here in every turn of the loop, and none is ever removed.",
            node=hooked.node,
            related=((call.node, "runs all of them"),),
            fix=_before(source, hooked, loop),
        )


def _stays(source: Source, hooked: Op, loop: Loop) -> bool:
    """Return True where the module is the same in every turn, and nothing takes its hooks away."""
    call = hooked.node
    inside = source.within(loop, root=hooked.root)
    remade = any(each.act is OpKind.MADE and each.subject.kind is Kind.MODEL for each in inside)
    taken = any(isinstance(each, ast.Attribute) and each.attr.endswith("_hooks") for each in source.nodes)
    if remade or taken or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    if dotted(call.func).startswith("self."):
        return _own(hooked, loop) and (
            source.fixed(call.func.value, hooked, loop) or _made_before(source, hooked, loop)
        )
    return source.fixed(call.func.value, hooked, loop)


def _own(hooked: Op, loop: Loop) -> bool:
    """Return True where the object whose method this is surely is one: ``trainer.step(batch)``."""
    changing, calls = stored(loop.node), [each.func for each in hooked.calls if isinstance(each, ast.Call)]
    return all(dotted(each) and not words(each) & changing for each in calls)


def _made_before(source: Source, hooked: Op, loop: Loop) -> bool:
    """Return True for a module of this file that was made outside of the loop."""
    module = hooked.subject
    made = next((each for each in source.acts(OpKind.MADE) if each.subject is module), None)
    return made is not None and not module.either and PART not in module.facts and not made.within(loop)


def _before(source: Source, hooked: Op, loop: Loop) -> Fix | None:
    """Return the fix: register before the loop, where nothing else of the loop is needed for it."""
    statement, call = hooked.statement, hooked.node
    own = statement in getattr(loop.node, "body", []) and len(source.block(statement)) > 1
    given = [*call.args, *(each.value for each in call.keywords)]
    if statement is None or not own or not all(source.fixed(each, hooked, loop) for each in given):
        return None
    edits = source.text.moved(statement, before=loop.node)
    return Fix(edits, safe=False, words="Register before the loop") if edits else None


RULE = Rule(words=("|".join(f"{each}(" for each in sorted(REGISTERING)),), find=find)

FAILURE = Failure(
    code="MEM005",
    title="Hooks pile up",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
features = {}


def keep(module, inputs, output):
    features["hidden"] = output.detach()


for step in range(8):
    model[1].register_forward_hook(keep)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    print(step, features["hidden"].mean().item())
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
features = {}


def keep(module, inputs, output):
    features["hidden"] = output.detach()


model[1].register_forward_hook(keep)
for step in range(8):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    print(step, features["hidden"].mean().item())
""",
    fix="Register the hook once, before the loop, or keep its handle and remove it in the same turn.",
    rule=RULE,
)
