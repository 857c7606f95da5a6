"""``model.forward(x)`` is called instead of ``model(x)``, so hooks and wrappers are skipped.

What you see
    Forward hooks never run: activations are not recorded, and a weight that a hook should prune or normalise does not
    change. With ``DistributedDataParallel``, each process trains its own model.

Why it happens
    ``forward`` is an ordinary method. The hooks run in ``__call__``, which only ``model(x)`` uses.

Fix
    Call the module:

        output = model.forward(x)  # wrong
        output = model(x)  # right

When this is fine
    - A subclass calls ``super().forward(x)``, or a module calls the ``forward`` of one of its submodules.
    - A method of the model calls the model's own ``forward``, as Lightning's ``training_step`` does.
    - A library calls ``forward``.
    - The module has no hooks, so both calls do the same.

How it is detected
    In a run, the sanitizer reports a module with hooks if the program called its ``forward`` directly and trained it
    twice, and never called the module itself. It does not check a ``forward`` that calls no submodule with parameters
    (such as that of ``nn.Linear``), a ``forward`` that a library has decorated, and a skipped
    ``DistributedDataParallel`` (DST002 does). It also reports the original weights of ``spectral_norm`` and
    ``weight_norm`` that got no gradient in 8 updates, if the program calls a ``forward`` directly. The linter warns
    about a direct call that trains a module and skips a hook that is never removed, or skips
    ``DistributedDataParallel``. Any other ``model.forward(x)`` is a note.

References
    torch.nn.Module.forward and its note, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    DistributedDataParallel,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

import ast
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.program_files import parse_files
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.formatting import first_few
from trueloop.core.source_text import Edit, Fix, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.tracing.events import BackwardEnded, Event, Ref, Refs, StepTaken
from trueloop.tracing.running_code import user_modules

MIN_BACKWARDS = 2  # a single backward pass may be an experiment
MIN_STEPS = 8
COMPUTED_FROM = frozenset(("weight_orig", "weight_g", "weight_v"))
"""Parameters of ``spectral_norm`` and ``weight_norm``, from which a forward pre-hook computes the weight."""
HOOKS = frozenset((
    "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_backward_hook",
    "register_full_backward_pre_hook",
))  # fmt: skip


@dataclass(slots=True, kw_only=True, eq=False)
class ForwardBypassed(Event):
    """The program called ``model.forward(x)`` with gradients enabled, which skips the model's hooks.

    Emitted once per line between two backward passes. Calls by the model's own methods and by libraries are left out.
    """

    model: Ref
    parameters: Refs
    hooks: tuple[str, ...]
    """Kinds of hooks that did not run: "forward pre-hook"."""
    also_called_normally: bool
    """Whether the model was also called normally before, directly or within another model."""


class Detector(BaseDetector):
    """Counts the backward passes through modules whose hooks were skipped."""

    activated_by = (ForwardBypassed, StepTaken)

    def __init__(self) -> None:
        self._bypassed: dict[Ref, ForwardBypassed] = {}
        """Direct calls of ``forward`` that no backward pass has reached yet, by model."""
        self._trained_times: dict[Ref, int] = {}
        self._backwards = 0
        self._steps_without_gradient: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        """Optimizer -> successive steps without a gradient for a parameter from which a pre-hook computes a weight."""

    def on_forward_bypassed(self, event: ForwardBypassed) -> None:
        """Record the direct call of ``forward``."""
        if event.also_called_normally:
            self._bypassed.pop(event.model, None)
        else:
            self._bypassed[event.model] = event

    def on_backward_ended(self, event: BackwardEnded) -> list[Evidence] | None:
        """Return evidence at the second backward pass that reaches a module."""
        self._backwards += 1
        if not self._bypassed:
            return None
        reached = [each for each in self._bypassed.values() if each.parameters & event.reached_parameters]
        for each in reached:
            del self._bypassed[each.model]
            self._trained_times[each.model] = self._trained_times.get(each.model, 0) + 1
        return [self._evidence(each) for each in reached if self._trained_times[each.model] >= MIN_BACKWARDS]

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence of weights that a skipped pre-hook would compute: they never get a gradient."""
        computed = {ref for ref in event.parameters if ref.name.rpartition(".")[2] in COMPUTED_FROM}
        missing = computed - event.with_gradient
        self._steps_without_gradient[event.optimizer] = steps = (
            self._steps_without_gradient.get(event.optimizer, 0) + 1
        ) * bool(missing)
        if steps != MIN_STEPS or not event.with_gradient:
            return None
        place = next(_direct_calls(user_modules().values()), None)
        names = sorted(each.name for each in missing)
        return place and Evidence(
            message=f"`{place[1]}` skips the pre-hook that computes the weight: {first_few(names)} got no gradient in "
            f"{steps} updates, so the layer is neither normalised nor trained.",
            location=place[0],
        )

    def _evidence(self, event: ForwardBypassed) -> Evidence:
        hooks = " and ".join(event.hooks)
        return Evidence(
            message=f"The program trains {event.model.name} with direct calls of `forward()`, which skip its {hooks}.",
            location=event.location,
            dedup_key=event.model,
        )

    def inconclusive(self) -> str:
        """Return the reason if no backward pass was traced."""
        return "no backward pass was traced" if self._bypassed and not self._backwards else ""


def _direct_calls(files: Iterable[str]) -> Iterator[tuple[SourceLocation, str]]:
    """Yield the calls of ``forward`` of another object than ``self`` and ``super()``."""
    for file in files:
        for tree in (parse_files([file]) or {}).values():
            for node in walk(tree):
                called = node.func if isinstance(node, ast.Call) else None
                if not isinstance(called, ast.Attribute) or called.attr != "forward":
                    continue
                if ast.unparse(called.value) not in ("self", "super()"):
                    yield SourceLocation(file, called.lineno), ast.unparse(node)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the direct calls of ``forward``: as warnings if training skips hooks or a wrapper, otherwise as notes."""
    classes = _class_lines(source)
    for call in source.ops(OpKind.FORWARD_CALL):
        model = call.subject
        if model.kind is not ValueKind.MODEL or any(first <= call.node.lineno <= last for first, last in classes):
            continue
        skipped = _find_skipped(source, call) if call.grad is not False and _is_trained(source, call) else None
        node: Any = call.node
        effect = "" if skipped is None else f", which skips {skipped[1]}"
        yield Hit(
            message=f"`{source.text.segment(node.func)}()` is called instead of the model itself{effect}.",
            node=node,
            related=((skipped[0].node, f"{skipped[1]} is attached here"),) if skipped else (),
            fix=_call_the_model(source, call),
            severity=None if skipped else Severity.NOTE,
        )


def _class_lines(source: SourceFile) -> list[tuple[int, int]]:
    """Return the line ranges of derived classes, in which a module may call ``forward`` of itself and its parts."""
    return [
        (each.lineno, each.end_lineno or each.lineno)
        for each in source.nodes_of(ast.ClassDef)
        if any(getattr(base, "id", "") != "object" for base in each.bases)
    ]


def _is_trained(source: SourceFile, call: Op) -> bool:
    """Return True if a backward pass reaches the model and no line calls the model itself."""
    if any(each.subject.may_alias(call.subject) for each in source.ops(OpKind.MODEL_CALL)):
        return False
    return any(
        each.entry_point == call.entry_point and "inputs" not in each.arguments and source.reaches(each, call.subject)
        for each in source.ops(OpKind.BACKWARD)
    )


def _find_skipped(source: SourceFile, call: Op) -> tuple[Op, str] | None:
    """Return a hook or wrapper that the call certainly skips, with its description."""
    for each in source.operations[: call.index]:
        if each.entry_point not in (0, call.entry_point) or each.branches != call.branches[: len(each.branches)]:
            continue
        is_hook = each.kind is OpKind.SET_ATTRIBUTE and each.name in HOOKS and each.subject.may_alias(call.subject)
        if is_hook and _is_permanent(each):
            return each, "the hook"
        wrapped = (
            each.kind is OpKind.CREATE and each.name.endswith(".DistributedDataParallel") and each.subject.sources[:1]
        )
        if wrapped and wrapped[0] is call.subject and not source.ops(OpKind.ACCESS_GRADIENTS):
            return each, "the DistributedDataParallel"
    return None


def _is_permanent(hook: Op) -> bool:
    """Return True if the handle is not stored, so that the hook cannot be removed."""
    return isinstance(hook.statement, ast.Expr) and hook.statement.value is hook.node


def _call_the_model(source: SourceFile, call: Op) -> Fix | None:
    """Return the fix that calls ``model(x)``; None for ``Net.forward(model, x)``."""
    node: Any = call.node
    start, end = source.text.span(node.func.value)[1], source.text.span(node.func)[1]
    is_plain = source.text.content[start:end] == b".forward" and len(call.inputs) == len(node.args) + len(node.keywords)
    return Fix((Edit(start, end, ""),), safe=False, description="Call the model itself") if is_plain else None


RULE = Rule(required_words=(".forward(",), find=find)

SCRIPT = """
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
means = []
model.register_forward_hook(lambda module, inputs, output: means.append(output.detach().mean()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss({call}(x), y)
    loss.backward()
    optimizer.step()
print(len(means))
"""

FAILURE = Failure(
    code="MDL002",
    title="Calling model.forward(x) skips hooks",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{call}", "model.forward"),
    good=SCRIPT.replace("{call}", "model"),
    fix="Call model(x), not model.forward(x).",
    rule=RULE,
    detector=Detector,
)
