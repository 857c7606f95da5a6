"""A hook is registered in every iteration of a loop and never removed.

What you see
    Every iteration takes a little longer than the previous one, and memory grows. What the hook does, such as scaling a
    gradient or storing a feature, is done twice, three times, a hundred times.

Why it happens
    A module accepts any number of hooks and runs them all. A hook can only be removed by the handle that
    ``register_forward_hook`` returns.

Fix
    Register the hook once, before the loop, or remove it in the same iteration.

        handle = model.layer.register_forward_hook(hook)
        model(x)
        handle.remove()

When this is fine
    - A hook for each of several layers, in a loop over layers.
    - A handle that is stored, whose ``remove()`` may come later.
    - A model that is created in the same iteration.
    - Hooks of activations, which are freed with their graph.

How it is detected
    From the text only: the handle is discarded, the module is the same in every iteration, and a model is called in
    that iteration.

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

from trueloop.analysis.abstract_value import PART, ValueKind
from trueloop.analysis.loop_invariance import assigned_names, names_in
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.loops import is_statement
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.source_text import Fix, dotted_name
from trueloop.failures.failure import Failure, Rule, Severity

REGISTERING: Final = frozenset((
    "register_forward_hook", "register_forward_pre_hook", "register_backward_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook",
))  # fmt: skip


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each registration whose handle is thrown away, on one module, as often as a model is called."""
    for hooked in source.ops(OpKind.SET_ATTRIBUTE):
        plain = isinstance(hooked.statement, ast.Expr) and hooked.statement.value is hooked.node
        if (
            hooked.name not in REGISTERING
            or not plain
            or not hooked.loops
            or hooked.subject.kind is not ValueKind.MODEL
        ):
            continue
        loop = hooked.loops[-1]
        if loop.runs_at_most_once() or not is_statement(loop.node) or not hooked.always_in(loop):
            continue
        call = next(
            (
                each
                for each in source.ops_of_run(hooked)
                if each.kind is OpKind.MODEL_CALL and each.same_iteration_as(hooked)
            ),
            None,
        )
        if call is None or not _stays(source, hooked, loop):
            continue
        yield Hit(
            message="Another hook is registered here in every turn of the loop, and none is ever removed.",
            node=hooked.node,
            related=((call.node, "runs all of them"),),
            fix=_before(source, hooked, loop),
        )


def _stays(source: SourceFile, hooked: Op, loop: Loop) -> bool:
    """Return True where the module is the same in every turn, and nothing takes its hooks away."""
    call = hooked.node
    inside = source.ops_in_loop(loop, root=hooked.entry_point)
    remade = any(each.kind is OpKind.CREATE and each.subject.kind is ValueKind.MODEL for each in inside)
    taken = any(isinstance(each, ast.Attribute) and each.attr.endswith("_hooks") for each in source.nodes)
    if remade or taken or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    if dotted_name(call.func).startswith("self."):
        return _own(hooked, loop) and (
            source.is_loop_invariant(call.func.value, hooked, loop) or _made_before(source, hooked, loop)
        )
    return source.is_loop_invariant(call.func.value, hooked, loop)


def _own(hooked: Op, loop: Loop) -> bool:
    """Return True where the object whose method this is surely is one: ``trainer.step(batch)``."""
    changing, calls = assigned_names(loop.node), [each.func for each in hooked.calls if isinstance(each, ast.Call)]
    return all(dotted_name(each) and not names_in(each) & changing for each in calls)


def _made_before(source: SourceFile, hooked: Op, loop: Loop) -> bool:
    """Return True for a module of this file that was made outside of the loop."""
    module = hooked.subject
    made = next((each for each in source.ops(OpKind.CREATE) if each.subject is module), None)
    return made is not None and not module.union and PART not in module.facts and not made.within(loop)


def _before(source: SourceFile, hooked: Op, loop: Loop) -> Fix | None:
    """Return the fix: register before the loop, where nothing else of the loop is needed for it."""
    statement, call = hooked.statement, hooked.node
    own = statement in getattr(loop.node, "body", []) and len(source.block(statement)) > 1
    given = [*call.args, *(each.value for each in call.keywords)]
    if statement is None or not own or not all(source.is_loop_invariant(each, hooked, loop) for each in given):
        return None
    edits = source.text.move_statement(statement, before=loop.node)
    return Fix(edits, safe=False, description="Register before the loop") if edits else None


RULE = Rule(required_words=("|".join(f"{each}(" for each in sorted(REGISTERING)),), find=find)

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
