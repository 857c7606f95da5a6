"""A layer is frozen, or thawed, through an attribute that nothing reads.

What you see
    A pretrained backbone that was to be frozen is trained along: it forgets what it knew, and the run takes the time
    and memory of a full fine-tuning. Or a head that was to be thawed never learns.

Why it happens
    Python lets anything be assigned to an object. ``parameter.require_grad = False`` makes a new attribute beside
    ``requires_grad``, and ``module.requires_grad = False`` makes one on a module, which has none of that name.

Fix
    ``module.requires_grad_(False)``, before the optimizer is built.

When this is fine
    ``parameter.requires_grad = False`` and ``module.requires_grad_(False)`` do what they say. Such a word may be kept
    as a setting: nothing is said where anything in the file may read the attribute, which reading ``requires_grad`` of
    what ``parameters()`` gives does not; and at run time where anything in the program may, or where the module's
    class, if it is not torch's own, has to do with it. What is imported only later is not known. A running program is
    accused where an optimizer steps what was to be frozen, at a rate that is not zero, or holds what was to be thawed
    and is not; not where a part is frozen in vain that no optimizer is given. It looks when a model is first called
    after an optimizer was made: what is frozen in vain later is found in the text only.

References
    nn.Module.requires_grad_, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    udacity/deep-learning-v2-pytorch#12: "require_grad needs to be requires_grad", in the solution of a course,
    https://github.com/udacity/deep-learning-v2-pytorch/issues/12
    SvenBecker/vscode-pytorch#8, "'freeze' syntax is incorrect and PyTorch won't tell you": "keeps all params
    'trainable'", https://github.com/SvenBecker/vscode-pytorch/issues/8
    CSCYQJ/MICCAI23-ProtoContra-SFDA#18: "self.model.outc.requires_grad = False [...] does not freeze the last layer",
    https://github.com/CSCYQJ/MICCAI23-ProtoContra-SFDA/issues/18
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.abstract_value import PART, AbstractValue, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, dotted
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.tracing.events import Event, FrozenInVain, Mark, Ref, Refs, StepTaken
from trueloop.tracing.program_text.freezing import MISSPELLED, RIGHT, may_be_read


class Detector(failure.Detector):
    """Waits for a step of what was to be frozen, or of an optimizer that holds what was to be thawed."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (FrozenInVain, StepTaken)
    activated_by: ClassVar[tuple[type[Event], ...]] = (FrozenInVain,)

    def __init__(self) -> None:
        self._marked: dict[Ref, FrozenInVain] = {}
        self._told = set[tuple[str, Refs]]()
        self._stepped = False

    def observe(self, event: FrozenInVain | StepTaken) -> list[Evidence] | None:
        """Return evidence for each attribute that such a step belies."""
        if isinstance(event, FrozenInVain):
            self._marked[event.model] = event
            return None
        self._stepped = True
        if not self._marked or 0 in event.rates:  # a rate of zero freezes, too
            return None
        found: list[Evidence] = []
        for marked in self._marked.values():
            for mark in marked.marks:
                hit = len(mark.parameters & (event.frozen if mark.value else event.with_gradient))
                if hit and (mark.attribute, mark.parameters) not in self._told:
                    self._told.add((mark.attribute, mark.parameters))
                    found.append(_evidence(marked, mark, hit, event))
        return found

    def inconclusive(self) -> str:
        """Return a reason where nothing was trained."""
        return "no optimizer stepped" if self._marked and not self._stepped else ""


def _evidence(marked: FrozenInVain, mark: Mark, hit: int, step: StepTaken) -> Evidence:
    first, more = mark.names[0], len(mark.names) - 1
    what = f"{first} of {marked.model.name}" if first else marked.model.name
    have = f" and {more} more have" if more else " has"
    of = f"{hit} of {len(mark.parameters)} parameters that were to be"
    led = f"{of} thawed get no gradient" if mark.value else f"{of} frozen are trained"
    right = f"requires_grad_({mark.value})" if mark.modules else f"requires_grad = {mark.value}"
    return Evidence(
        message=f"{what}{have} an attribute {mark.attribute} = {mark.value}, which nothing reads: {led}.",
        location=marked.place,
        related=((step.place, "stepped here"),) if step.place else (),
        fix=f"Call {right} of each module." if mark.modules else f"Set {right} of each parameter.",
        about=(mark.parameters, mark.attribute),
    )


def find(source: Source) -> Iterator[Hit]:
    """Yield each assignment of a truth value to such an attribute."""
    for bound in source.acts(OpKind.BOUND, OpKind.FROZEN):
        target = bound.node
        if not isinstance(target, ast.Attribute) or not isinstance(_value(bound), bool):
            continue
        owner = bound.subject.kind
        if bound.act is OpKind.BOUND and target.attr in MISSPELLED:
            known = owner in (Kind.PARAMETERS, Kind.MODEL, Kind.TENSOR)
            if known and not may_be_read(source.tree, target.attr, of_modules=owner is Kind.MODEL):
                yield Hit(
                    message=f"{target.attr} is an attribute that nothing reads: the one that counts is requires_grad.",
                    node=target,
                    fix=_renamed(source, bound, owner is Kind.MODEL),
                )
        elif bound.act is OpKind.FROZEN and _is_module(bound.subject) and not _kept(source, bound, target):
            word = "thaws" if bound.value else "freezes"
            yield Hit(
                message=f"A module has no requires_grad: the assignment {word} none of its parameters.",
                node=target,
                fix=_renamed(source, bound, True),
            )


def _is_module(owner: AbstractValue) -> bool:
    """Return True for a module of this file; what another file's module holds may be a parameter: ``net.fc.bias``."""
    if owner.kind is not Kind.MODEL or PART not in owner.facts:
        return owner.kind is Kind.MODEL
    method = owner.node.func if isinstance(owner.node, ast.Call) else None
    return isinstance(method, ast.Attribute) and method.attr in ("children", "modules")


def _value(bound: Op) -> object:
    return bound.value if bound.act is OpKind.FROZEN else bound.things[0].constant() if bound.things else None


def _kept(source: Source, bound: Op, target: ast.Attribute) -> bool:
    """Return True where the file may read the attribute, as a setting, or where the module keeps what it is given."""
    given = bound.statement.value if isinstance(bound.statement, ast.Assign) else None
    if not dotted(target.value) or (dotted(target.value) == "self" and isinstance(given, ast.Name)):
        return True
    return may_be_read(source.tree, RIGHT, of_modules=True)


def _renamed(source: Source, bound: Op, module: bool) -> Fix | None:
    """Return the fix: the method of a module, or the attribute of a parameter."""
    target, statement = bound.node, bound.statement
    if not isinstance(statement, ast.Assign) or statement.targets != [target]:
        return None
    owner = source.text.of(target.value)
    right = f"{owner}.requires_grad_({_value(bound)})" if module else f"{owner}.{RIGHT} = {_value(bound)}"
    return Fix((source.text.replace(statement, right),), safe=False, words="Freeze it as torch does")


RULE = Rule(words=("|".join((".requires_grad =", ".requires_grad=", *sorted(MISSPELLED))),), find=find)

FAILURE = Failure(
    code="GRD012",
    title="A layer is frozen in vain",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
for parameter in backbone.parameters():
    parameter.require_grad = False
model = nn.Sequential(backbone, nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
for parameter in backbone.parameters():
    parameter.requires_grad = False
model = nn.Sequential(backbone, nn.Linear(16, 1))
optimizer = torch.optim.SGD(model[1].parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
""",
    fix="Set requires_grad of the parameters, or call requires_grad_ of the module.",
    rule=RULE,
    detector=Detector,
)
