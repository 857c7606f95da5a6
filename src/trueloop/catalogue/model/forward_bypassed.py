"""The method ``forward`` is called instead of the model, so that hooks and wrappers are left out.

Symptom
    Forward hooks never run: activations are not recorded, a weight that a hook prunes or normalises keeps its old
    value. Behind ``DistributedDataParallel`` a call of ``model.module.forward`` trains each process by itself.

Why nothing raises
    ``forward`` is a method like any other. What runs the hooks is ``__call__``, around it.

Look-alikes
    ``super().forward(x)``, a method of the model that calls its own ``forward`` (Lightning's ``training_step``), a
    module that calls the ``forward`` of one within it, and calls by libraries are not told; nor is a module without
    hooks of its own, for which there is no difference today. Certain where a line of the program called the
    ``forward`` of a module with hooks, a backward reached its parameters, this twice, and the module was not called
    as it should be before. Who leaves hooks out on purpose takes them off, or calls the model now and then. Not
    judged: a ``forward`` within which no module with parameters runs, as that of ``nn.Linear``, or which a library
    has decorated; and a wrapper that is left out, which DST002 tells of. The text alone shows a
    module that is trained this way past a hook that nothing takes off, or past the ``DistributedDataParallel`` around
    it; any other ``model.forward(x)`` outside of a module's own class is a note.

Fix
    Call the module: ``model(x)``.

References
    torch.nn.Module.forward and its note, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    DistributedDataParallel,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, ClassVar

from trueloop.ground.events import BackwardEnded, Event, ForwardBypassed, Ref
from trueloop.ground.failure import Failure, Rule, Severity
from trueloop.ground.findings import Evidence
from trueloop.ground.source.operations import Act, Operation
from trueloop.ground.source.source import Hit, Source
from trueloop.ground.source.text import Edit, Fix
from trueloop.ground.source.things import Kind

TIMES = 2  # once may be a trial
HOOKS = frozenset((
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_backward_hook",
    "register_full_backward_pre_hook",
))  # fmt: skip


class Detector:
    """Waits until what was computed past a module's hooks has trained it."""

    moments: ClassVar[tuple[type[Event], ...]] = (ForwardBypassed, BackwardEnded)
    rouses: ClassVar[tuple[type[Event], ...]] = (ForwardBypassed,)

    def __init__(self) -> None:
        self._waiting: dict[Ref, ForwardBypassed] = {}
        self._times: dict[Ref, int] = {}
        self._backwards = 0

    def observe(self, event: ForwardBypassed | BackwardEnded) -> list[Evidence] | None:
        """Return evidence when a backward has reached the module again."""
        if isinstance(event, ForwardBypassed):
            if event.called:
                self._waiting.pop(event.model, None)
            else:
                self._waiting[event.model] = event
            return None
        self._backwards += 1
        if not self._waiting:
            return None
        reached = [each for each in self._waiting.values() if each.parameters & event.received]
        for each in reached:
            del self._waiting[each.model]
            self._times[each.model] = self._times.get(each.model, 0) + 1
        return [self._tell(each) for each in reached if self._times[each.model] >= TIMES]

    def _tell(self, event: ForwardBypassed) -> Evidence:
        hooks = " and a ".join(event.hooks)
        return Evidence(
            message=f"{event.model.name} is trained through its method forward, past a {hooks} that it has.",
            place=event.place,
            about=event.model,
        )

    def abstains(self) -> str:
        """Return a reason where nothing was trained."""
        return "no backward was watched" if self._waiting and not self._backwards else ""


def find(source: Source) -> Iterator[Hit]:
    """Yield the calls of ``forward`` from outside, of models that are trained by them past hooks or a wrapper."""
    methods = _methods(source.tree)
    for call in source.acts(Act.FORWARD):
        model = call.subject
        if model.kind is not Kind.MODEL or any(first <= call.node.lineno <= last for first, last in methods):
            continue
        past = _left_out(source, call) if call.grad is not False and _trained(source, call) else None
        words = "" if past is None else f", past {past[1]}"
        yield Hit(
            message=f"The method forward is called in place of the model{words}.",
            node=call.node,
            related=((past[0].node, f"{past[1]} put on it"),) if past else (),
            fix=_called(source, call),
            severity=None if past else Severity.NOTE,
        )


def _methods(tree: ast.Module) -> list[tuple[int, int]]:
    """Return the lines of the classes that derive from something: a module may do this to itself and its parts."""
    return [
        (each.lineno, each.end_lineno or each.lineno)
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef) and any(getattr(base, "id", "") != "object" for base in each.bases)
    ]


def _trained(source: Source, call: Operation) -> bool:
    """True where a backward reaches the model, and nothing calls it as it should be."""
    if any(each.subject.may_be(call.subject) for each in source.acts(Act.CALLED)):
        return False
    return any(
        each.root == call.root and "inputs" not in each.options and source.reaches(each, call.subject)
        for each in source.acts(Act.BACKWARD)
    )


def _left_out(source: Source, call: Operation) -> tuple[Operation, str] | None:
    """Return a hook or wrapper of the model that is there whenever the call is made, and what it is."""
    for each in source.operations[: call.index]:
        if each.root not in (0, call.root) or each.branches != call.branches[: len(each.branches)]:
            continue
        if each.act is Act.BOUND and each.word in HOOKS and each.subject.may_be(call.subject) and _for_good(each):
            return each, "the hook"
        wraps = each.act is Act.MADE and each.word.endswith(".DistributedDataParallel") and each.subject.of[:1]
        if wraps and wraps[0] is call.subject and not source.acts(Act.GRADIENTS):
            return each, "the DistributedDataParallel"
    return None


def _for_good(hook: Operation) -> bool:
    """True where nothing keeps the handle of a hook, by which it could be taken off."""
    return isinstance(hook.statement, ast.Expr) and hook.statement.value is hook.node


def _called(source: Source, call: Operation) -> Fix | None:
    """Return the fix: ``model(x)``; None for ``Net.forward(model, x)``.

    It is not safe: the hooks that run from then on may change or detach the output.
    """
    node: Any = call.node
    start, end = source.text.span(node.func.value)[1], source.text.span(node.func)[1]
    plain = source.text.content[start:end] == b".forward" and len(call.things) == len(node.args) + len(node.keywords)
    return Fix((Edit(start, end, ""),), safe=False, words="Call the model itself") if plain else None


RULE = Rule(words=(".forward(",), find=find)


FAILURE = Failure(
    code="MDL002",
    title="The forward method is called instead of the model",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
seen = []
model.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().mean()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model.forward(x), y)
    loss.backward()
    optimizer.step()
print(len(seen))
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
seen = []
model.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().mean()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print(len(seen))
""",
    fix="Call model(x), not model.forward(x).",
    rule=RULE,
    detector=Detector,
)
