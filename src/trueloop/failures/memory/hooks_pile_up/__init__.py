"""A hook is registered in every iteration of a loop, or at every evaluation, and never removed.

What you see
    Every iteration takes a little longer than the previous one, and memory grows. A hook that scales a gradient or
    stores a feature does so twice in the second iteration and a hundred times in the hundredth.

Why it happens
    A module accepts any number of hooks and runs all of them. A hook can only be removed with the handle that
    ``register_forward_hook`` returns.

Fix
    Register the hook once, before the loop, or remove it in the same iteration.

        handle = model.layer.register_forward_hook(hook)
        model(x)
        handle.remove()

When this is fine
    - You register one hook for each of several layers, in a loop over the layers.
    - You store the handle and call its ``remove()`` later.
    - The model is created in the same iteration.
    - You register the hook on a tensor, which is freed with its graph.

How it is detected
    In a run, the sanitizer reports a module with at least four hooks of the same function of the program, whose number
    grew at three different updates. The linter reports a hook that each iteration of a loop registers on the same
    module, itself or in functions that it calls, without a handle or with one that is never read or removed. It also
    reports such a hook in a method of a class that a trainer calls at every epoch or batch, such as ``on_epoch_start``.

References
    nn.Module.register_forward_hook, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    huggingface/peft#2761: "forward hooks would accumulate during generation, since one hook per forward step was being
    registered", https://github.com/huggingface/peft/pull/2761
    facebookresearch/fairscale#1143, "Cleared backward hooks to avoid accumulating over iterations",
    https://github.com/facebookresearch/fairscale/pull/1143
"""

import ast
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.abstract_value import SUBMODULE, ValueKind
from trueloop.analysis.loop_invariance import assigned_names, names_in
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.loops import is_inside, is_statement
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, dotted_name
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.memory.hooks_pile_up.registrations import discards_handle, in_callbacks, registers_on_same_module
from trueloop.tracing.events import Event, Ref

REGISTER_METHODS: Final = frozenset((
    "register_forward_hook", "register_forward_pre_hook", "register_backward_hook", "register_full_backward_hook",
    "register_full_backward_pre_hook",
))  # fmt: skip


MIN_HOOKS: Final = 4  # of one function on one module
MIN_GROWTHS: Final = 3  # updates at which their number grew


@dataclass(slots=True, kw_only=True, eq=False)
class HookRegistered(Event):
    """RARE. A module got a hook of a function of the program of which it had a hook already."""

    module: Ref
    name: str
    """Name of the function."""
    count: int
    """Number of hooks of this function that the module has now."""


class Detector(BaseDetector):
    """Checks whether the number of equal hooks of a module grows during the training."""

    activated_by = (HookRegistered,)

    def __init__(self) -> None:
        self._growths: weakref.WeakKeyDictionary[Ref, dict[str, dict[int, int]]] = weakref.WeakKeyDictionary()
        """Module -> function -> number of updates -> number of its hooks then, while this grows."""

    def on_hook_registered(self, event: HookRegistered) -> Evidence | None:
        """Return evidence if a module has equal hooks from several updates."""
        by_function = self._growths.setdefault(event.module, {})
        earlier = by_function.get(event.name, {})
        counts = {update: count for update, count in earlier.items() if count < event.count}
        by_function[event.name] = counts | {event.update: event.count}
        if event.count < MIN_HOOKS or len(by_function[event.name]) < MIN_GROWTHS:
            return None
        by_function[event.name] = {}
        return Evidence(
            message=f"{event.module.name} has {event.count} hooks of the same function `{event.name}`, registered here "
            "again and again and never removed: each forward or backward pass runs all of them.",
            location=event.location,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each registration of a hook that is never removed, in a loop, or in a callback of every epoch or batch."""
    reported = set[int]()
    for hit in _in_loops(source):
        reported.add(id(hit.node))
        yield hit
    if not any(each.attr.endswith("_hooks") for each in source.nodes_of(ast.Attribute)):  # perhaps cleared
        for call in in_callbacks(source, REGISTER_METHODS):
            if id(call) not in reported:
                yield Hit(
                    message=f"`{ast.unparse(call.func)}` adds another hook each time that the trainer calls this "
                    "method, and no hook is removed.",
                    node=call,
                )


def _in_loops(source: SourceFile) -> Iterator[Hit]:
    """Yield each registration of a hook that is never removed, in a loop that also calls a model."""
    for registration in source.ops(OpKind.SET_ATTRIBUTE):
        if registration.name not in REGISTER_METHODS or not registration.loops:
            continue
        loop = registration.loops[-1]
        if registration.subject.kind not in (ValueKind.MODEL, ValueKind.UNKNOWN) or not _is_repeated(
            registration, loop
        ):
            continue
        run = source.ops_of_run(registration)
        call = next((e for e in run if e.kind is OpKind.MODEL_CALL and e.is_inside(loop)), None)
        if call is None or not _is_same_module(source, registration, loop):
            continue
        if discards_handle(source, registration):
            yield Hit(
                message=f"`{ast.unparse(registration.node.func)}` adds another hook in every iteration of the loop, "
                "and no hook is removed.",
                node=registration.node,
                related=((call.node, "this call runs all hooks"),),
                fix=_move_before_loop(source, registration, loop),
            )


def _is_repeated(registration: Op, loop: Loop) -> bool:
    """Return True if each of several iterations of a loop registers the hook."""
    return (
        not loop.runs_at_most_once() and is_statement(loop.node) and registration.is_unconditional_in(loop)
    ) and isinstance(registration.node, ast.Call)


def _is_same_module(source: SourceFile, registration: Op, loop: Loop) -> bool:
    """Return True if the module is the same in every iteration and its hooks are not removed."""
    call = registration.node
    inside = source.ops_in_loop(loop, root=registration.entry_point)
    recreated = any(each.kind is OpKind.CREATE and each.subject.kind is ValueKind.MODEL for each in inside)
    hooks = [each for each in source.nodes_of(ast.Attribute) if each.attr.endswith("_hooks")]
    cleared = any(  # more than read, such as for their number
        not isinstance(each.ctx, ast.Load) or isinstance(source.parents[id(each)], ast.Attribute | ast.Subscript)
        for each in hooks
    )
    if recreated or cleared or not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    if registration.calls and registers_on_same_module(source, registration, loop):
        return True
    if dotted_name(call.func).startswith("self."):
        return _is_same_object(registration, loop) and (
            source.is_loop_invariant(call.func.value, registration, loop)
            or _is_created_before(source, registration, loop)
        )
    return source.is_loop_invariant(call.func.value, registration, loop) or _is_same_argument(registration, loop)


def _is_same_argument(registration: Op, loop: Loop) -> bool:
    """Return True if the module is a parameter that each iteration passes the same: ``watch(model.hidden, x)``."""
    function, module = registration.function, registration.node.func.value
    call = registration.calls[-1] if registration.calls else None
    if function is None or is_inside(loop.node, function) or not isinstance(call, ast.Call):
        return False
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    given = call.args if names[:1] != ["self"] else [call.func, *call.args]
    passed = {**dict(zip(names, given, strict=False)), **{each.arg: each.value for each in call.keywords}}
    argument = passed.get(module.id) if isinstance(module, ast.Name) else None
    return argument is not None and bool(dotted_name(argument)) and not names_in(argument) & assigned_names(loop.node)


def _is_same_object(registration: Op, loop: Loop) -> bool:
    """Return True if all calls that lead to the method have the same object: ``trainer.step(batch)``."""
    changing, calls = (
        assigned_names(loop.node),
        [each.func for each in registration.calls if isinstance(each, ast.Call)],
    )
    return all(dotted_name(each) and not names_in(each) & changing for each in calls)


def _is_created_before(source: SourceFile, registration: Op, loop: Loop) -> bool:
    """Return True for a module that this file creates outside the loop."""
    module = registration.subject
    created = next((each for each in source.ops(OpKind.CREATE) if each.subject is module), None)
    return created is not None and not module.union and SUBMODULE not in module.facts and not created.is_inside(loop)


def _move_before_loop(source: SourceFile, registration: Op, loop: Loop) -> Fix | None:
    """Return the fix that registers before the loop; None if the registration depends on the loop."""
    statement, call = registration.statement, registration.node
    is_movable = statement in getattr(loop.node, "body", []) and len(source.block(statement)) > 1
    arguments = [*call.args, *(each.value for each in call.keywords)]
    if (
        statement is None
        or not is_movable
        or not all(source.is_loop_invariant(each, registration, loop) for each in arguments)
    ):
        return None
    edits = source.text.move_statement(statement, before=loop.node)
    return Fix(edits, safe=False, description="Register before the loop") if edits else None


RULE = Rule(required_words=("|".join(f"{each}(" for each in sorted(REGISTER_METHODS)),), find=find)

BAD = """
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
"""

FAILURE = Failure(
    code="MEM005",
    title="Hooks accumulate in the training loop",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "for step in range(8):": "model[1].register_forward_hook(keep)\nfor step in range(8):",
            "    model[1].register_forward_hook(keep)\n": "",
        },
    ),
    fix="Register the hook once, before the loop, or store its handle and remove the hook in the same iteration.",
    rule=RULE,
    detector=Detector,
)
