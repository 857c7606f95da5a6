"""A layer is frozen or unfrozen through an attribute that PyTorch does not read.

What you see
    A pretrained part that should be frozen is trained: it forgets what it has learned, and the run takes as much time
    and memory as without freezing. Or a part that should be unfrozen never learns.

Why it happens
    Python allows any attribute on an object. ``parameter.require_grad = False`` creates a new attribute next to
    ``requires_grad``, and ``module.requires_grad = False`` creates one on a module, which has no such attribute.

Fix
    Call the module's method before the optimizer is built, or set the attribute of each parameter.

        module.requires_grad = False  # wrong: has no effect on the parameters
        module.requires_grad_(False)  # right

When this is fine
    - You use ``parameter.requires_grad = False`` or ``module.requires_grad_(False)``, which are correct.
    - The program uses an attribute of this name as its own setting and reads it.

How it is detected
    The linter reports the assignment, unless the file may read the attribute, and each one to a tensor that
    ``state_dict()`` returns, which shares the numbers of the parameter but not its settings. In a run, the sanitizer
    looks for such attributes when a model is first called after an optimizer was built, so it does not see later
    assignments. It
    reports an attribute that no code of the program reads, once an optimizer steps parameters that should be frozen
    with a learning rate above zero, or has parameters that should be unfrozen and are not.

References
    nn.Module.requires_grad_, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    udacity/deep-learning-v2-pytorch#12: "require_grad needs to be requires_grad", in the solution of a course,
    https://github.com/udacity/deep-learning-v2-pytorch/issues/12
    SvenBecker/vscode-pytorch#8, "'freeze' syntax is incorrect and PyTorch won't tell you": "keeps all params
    'trainable'", https://github.com/SvenBecker/vscode-pytorch/issues/8
    CSCYQJ/MICCAI23-ProtoContra-SFDA#18: "self.model.outc.requires_grad = False [...] does not freeze the last layer",
    https://github.com/CSCYQJ/MICCAI23-ProtoContra-SFDA/issues/18
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from trueloop.analysis.abstract_value import SUBMODULE, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.possible_values import loops_around, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import Fix, dotted_name
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.gradient.frozen_in_vain.attribute_readers import MISSPELLINGS, REQUIRES_GRAD, may_be_read
from trueloop.tracing.events import Event, Ref, Refs, StepTaken

_PARAMETER: Final = re.compile(r"\.(weight|bias)$|(^|_)param(eter)?s?$")
"""Parameters of a model that is created elsewhere."""


class FreezeAttribute(NamedTuple):
    """An attribute that was set to freeze or unfreeze parts of a model, and that no code reads."""

    attribute: str
    """Name of the attribute, such as "frozen"; "requires_grad" if it was set on a module, where it has no effect."""
    value: bool
    names: tuple[str, ...]
    """Names of the modules or parameters with the attribute; "" is the model itself."""
    on_modules: bool
    """Whether the attribute was set on modules, not on parameters."""
    parameters: Refs
    """Parameters that were meant: all require gradients though they should be frozen, or none though they should."""
    location: SourceLocation | None
    """The line that set the attribute; None unless the program has exactly one such line."""


@dataclass(slots=True, kw_only=True, eq=False)
class IneffectiveFreeze(Event):
    """RARE. Attributes that were meant to freeze parts of a model have no effect; emitted when this list changes."""

    model: Ref
    attributes: tuple[FreezeAttribute, ...]
    """The ineffective attributes; empty when those of an earlier event were removed."""


class Detector(BaseDetector):
    """Checks at each step whether parameters that should be frozen are trained, or the reverse."""

    activated_by = (IneffectiveFreeze,)

    def __init__(self) -> None:
        self._assignments: dict[Ref, IneffectiveFreeze] = {}
        self._reported = set[tuple[str, Refs]]()
        self._stepped = False

    def on_ineffective_freeze(self, event: IneffectiveFreeze) -> None:
        """Record the attributes."""
        self._assignments[event.model] = event

    def on_step_taken(self, event: StepTaken) -> list[Evidence] | None:
        """Return evidence for each attribute that had no effect on the parameters of a step."""
        self._stepped = True
        if not self._assignments or 0 in event.learning_rates:  # a learning rate of zero also freezes parameters
            return None
        evidence: list[Evidence] = []
        for assignment in self._assignments.values():
            for each in assignment.attributes:
                count = len(each.parameters & (event.frozen if each.value else event.with_gradient))
                if count and (each.attribute, each.parameters) not in self._reported:
                    self._reported.add((each.attribute, each.parameters))
                    evidence.append(_evidence(assignment, each, count, event))
        return evidence

    def inconclusive(self) -> str:
        """Return a reason if nothing was trained."""
        return "no optimizer stepped" if self._assignments and not self._stepped else ""


def _evidence(assignment: IneffectiveFreeze, freeze: FreezeAttribute, count: int, step: StepTaken) -> Evidence:
    first, more = freeze.names[0], len(freeze.names) - 1
    owner = f"{first} of {assignment.model.name}" if first else assignment.model.name
    verb = f" and {more} more have" if more else " has"
    share = f"{count} of {len(freeze.parameters)} parameters that should be"
    effect = f"{share} unfrozen get no gradient" if freeze.value else f"{share} frozen are trained"
    correct = f"requires_grad_({freeze.value})" if freeze.on_modules else f"requires_grad = {freeze.value}"
    return Evidence(
        message=f"{owner}{verb} an attribute `{freeze.attribute} = {freeze.value}` that nothing reads: {effect}.",
        location=freeze.location or assignment.location,
        related=((step.location, "the step"),) if step.location else (),
        fix=f"Call `{correct}` on each module." if freeze.on_modules else f"Set `{correct}` on each parameter.",
        dedup_key=(freeze.parameters, freeze.attribute),
    )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each assignment of True or False to an attribute that does not freeze anything."""
    for assignment in source.ops(OpKind.SET_ATTRIBUTE, OpKind.SET_REQUIRES_GRAD):
        target = assignment.node
        if not isinstance(target, ast.Attribute) or not isinstance(_value(assignment), bool):
            continue
        owner = assignment.subject.kind
        if assignment.kind is OpKind.SET_ATTRIBUTE and target.attr in MISSPELLINGS:
            is_candidate = owner in (ValueKind.PARAMETERS, ValueKind.MODEL, ValueKind.TENSOR)
            is_parameter = bool(_PARAMETER.search(dotted_name(target.value)))
            is_candidate |= owner is ValueKind.UNKNOWN and is_parameter
            if is_candidate and not may_be_read(source.tree, target.attr, of_modules=owner is ValueKind.MODEL):
                yield Hit(
                    message=f"`{ast.unparse(target)}` has no effect: PyTorch does not read this attribute, only "
                    "`requires_grad`.",
                    node=target,
                    fix=_freeze_correctly(source, assignment, owner is ValueKind.MODEL),
                    # most other tensors train nothing
                    severity=Severity.NOTE if owner is ValueKind.TENSOR and not is_parameter else None,
                )
        elif (
            assignment.kind is OpKind.SET_REQUIRES_GRAD
            and _is_module(assignment.subject)
            and not _is_setting(source, assignment, target)
        ):
            verb = "unfreezes" if assignment.value else "freezes"
            yield Hit(
                message=f"This assignment {verb} no parameter: `{ast.unparse(target.value)}` is a module, and only its "
                "parameters have `requires_grad`.",
                node=target,
                fix=_freeze_correctly(source, assignment, True),
            )


def _is_module(owner: AbstractValue) -> bool:
    """Return True for a module of this file; an attribute of another file's module may be a parameter, ``fc.bias``."""
    if owner.kind is not ValueKind.MODEL or SUBMODULE not in owner.facts:
        return owner.kind is ValueKind.MODEL
    method = owner.node.func if isinstance(owner.node, ast.Call) else None
    return isinstance(method, ast.Attribute) and method.attr in ("children", "modules")


def _value(assignment: Op) -> object:
    if assignment.kind is OpKind.SET_REQUIRES_GRAD:
        return assignment.value
    return assignment.inputs[0].constant() if assignment.inputs else None


def _is_setting(source: SourceFile, assignment: Op, target: ast.Attribute) -> bool:
    """Return True if the file may read the attribute as a setting, or the module stores one of its arguments in it."""
    value = assignment.statement.value if isinstance(assignment.statement, ast.Assign) else None
    owner = target.value
    if isinstance(owner, ast.Subscript) and isinstance(owner.slice, ast.Constant):
        owner = owner.value  # model[0].requires_grad
    if not dotted_name(owner) or (dotted_name(owner) == "self" and isinstance(value, ast.Name)):
        return True
    return may_be_read(source.tree, REQUIRES_GRAD, of_modules=True)


def _freeze_correctly(source: SourceFile, assignment: Op, module: bool) -> Fix | None:
    """Return the fix that calls the module's method, or sets the parameter's attribute."""
    target, statement = assignment.node, assignment.statement
    if not isinstance(statement, ast.Assign) or statement.targets != [target]:
        return None
    owner = source.text.segment(target.value)
    value = _value(assignment)
    correct = f"{owner}.requires_grad_({value})" if module else f"{owner}.{REQUIRES_GRAD} = {value}"
    return Fix((source.text.replace(statement, correct),), safe=False, description=f"Use `{correct}`")


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and settings of the tensors that ``state_dict`` returns, which are detached."""
    yield from find(source)
    for node in source.nodes_of(ast.Assign, ast.Call):
        target = node.func if isinstance(node, ast.Call) else node.targets[0]
        if isinstance(target, ast.Attribute) and target.attr in (REQUIRES_GRAD, f"{REQUIRES_GRAD}_"):
            state = _state_of(source, target.value)
            if state is not None:
                yield Hit(
                    message=f"`{ast.unparse(node)}` changes no parameter: `{ast.unparse(state)}` returns tensors that "
                    "are detached from the parameters. Only those of `parameters()` and `named_parameters()` count.",
                    node=target,
                    related=((state, "the detached tensors"),) if state.lineno != target.lineno else (),
                )


def _state_of(source: SourceFile, tensor: ast.expr) -> ast.Call | None:
    """Return the call of ``state_dict`` whose result contains a tensor: ``state["fc.weight"]``, ``for p in ...``."""
    states: list[ast.expr] = []
    if isinstance(tensor, ast.Subscript):
        states = list(origins(source, tensor.value))
    elif isinstance(tensor, ast.Name):
        loop = next((e for e in loops_around(source, tensor) if _binds(e.target, tensor.id)), None)
        match loop.iter if loop is not None else None:
            case ast.Call(func=ast.Attribute(attr="items" | "values", value=state), args=[]):
                states = list(origins(source, state))
            case _:
                pass
    calls = [e for e in states if isinstance(e, ast.Call) and last_name(e.func) == "state_dict" and not e.keywords]
    return calls[0] if calls and calls[-1] is states[-1] else None


def _binds(target: ast.expr, name: str) -> bool:
    """Return True if a loop binds a name to the values: ``for p in ...``, ``for key, p in ...``."""
    last = target.elts[-1] if isinstance(target, ast.Tuple) else target
    return isinstance(last, ast.Name) and last.id == name


_WORDS: Final = (".requires_grad =", ".requires_grad=", *sorted(MISSPELLINGS))
RULE = Rule(required_words=("|".join(_WORDS),), find=find_all)

BAD = """
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
"""

FAILURE = Failure(
    code="GRD012",
    title="Freezing has no effect",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "parameter.require_grad = False": "parameter.requires_grad = False",
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)": (
                "optimizer = torch.optim.SGD(model[1].parameters(), lr=0.01)"
            ),
        },
    ),
    fix="Call requires_grad_(False) on the module, or set requires_grad on each parameter.",
    rule=RULE,
    detector=Detector,
)
