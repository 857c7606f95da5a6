"""A setting such as ``optimizer.lr`` is assigned, but the optimizer does not read this attribute.

What you see
    A learning rate decay, a warm-up or a new weight decay that the program sets has no effect.

Why it happens
    A PyTorch optimizer reads its settings only from ``optimizer.param_groups``. It does not see a later change of the
    variable with which it was created. ``optimizer.lr = ...`` creates a new
    attribute that nothing reads. ``optimizer.defaults["lr"]`` is used only for parameter groups that are added later.
    ``optimizer.state_dict()`` returns copies of the groups, so changing them does not change the optimizer.

Fix
    Set the value in every parameter group, or use a scheduler.

        optimizer.lr = 1e-4         # wrong: nothing reads this attribute
        for group in optimizer.param_groups:
            group["lr"] = 1e-4      # right

When this is fine
    - The optimizer is your own class or comes from another library, and reads this attribute.
    - You change a state_dict and then load it into the optimizer.
    - You change the defaults before you call ``add_param_group`` or build another optimizer from them.
    - Your program reads the attribute itself, or copies it to the groups.
    - The groups have different schedules, and all of them are set, or only a backbone or head is changed, by name.

How it is detected
    The linter reports the assignment if the object is certainly an optimizer or scheduler of PyTorch, and nothing in
    the file reads this attribute of an optimizer or sets this value in a parameter group. If the optimizer is an
    argument of a function, or is passed to code outside the file, this is a warning, in loops only. The linter also
    reports a change of the variable that the optimizer got as its learning rate, ``lr *= 0.1``, if nothing but a
    message reads the new value, and ``optimizer.param_groups[0]["lr"] = ...`` in a loop or function, if the optimizer
    is created with several groups, nothing sets the rate of the others, and no name or comment says which group is
    meant, and a key such as ``"learning_rate"`` of a parameter group, which PyTorch keeps without reading it. It
    reports a rate that a loop over the groups computes without storing it, and a function of a script that sets the
    rate, if nothing calls it and nothing else changes the rate. In a run, the sanitizer reports an attribute that
    differs from the parameter groups at two times with steps in between, if nothing in any file of the program reads
    it, and a default that changed after the optimizer was created, if the program reads no defaults and adds no group.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    V2AI/Det3D#109: "self.optimizer.lr = lrs[-1] will not change lr used in optimizer",
    https://github.com/V2AI/Det3D/issues/109
    pytorch/examples#64, "Adjusting learning rate": it was written into ``optimizer.state_dict()['param_groups']``,
    https://github.com/pytorch/examples/issues/64
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trueloop.analysis.abstract_value import EXTERNAL, MANAGED, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.assignments import assigned_value
from trueloop.analysis.queries.loops import is_inside
from trueloop.analysis.queries.optimizer_settings import sets_in_groups
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence, SourceLocation
from trueloop.core.source_text import Fix, dotted_name, nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.optimizer.setting_ignored.changed_variable import changed_variables
from trueloop.failures.optimizer.setting_ignored.first_group import first_groups
from trueloop.failures.optimizer.setting_ignored.unknown_keys import unknown_keys
from trueloop.failures.optimizer.setting_ignored.unused_rates import unused_rates
from trueloop.tracing.events import Event, Ref

SETTINGS = frozenset(("lr", "weight_decay", "momentum", "betas", "eps", "nesterov", "amsgrad", "dampening"))
"""Settings of PyTorch's optimizers that programs change."""
_OPTIMIZER_ATTRIBUTES = SETTINGS | {
    "step", "zero_grad", "param_groups", "add_param_group", "state", "state_dict", "load_state_dict", "defaults",
}  # fmt: skip
_BY_NAME = frozenset(("getattr", "hasattr", "attrgetter"))


@dataclass(slots=True, kw_only=True, eq=False)
class OptimizerAttributeSet(Event):
    """RARE. A setting of a PyTorch optimizer was set as an attribute or default, and it stepped with another value."""

    LIVE_FIELDS: ClassVar[tuple[str, ...]] = ("trees",)
    optimizer: Ref
    attribute: str
    attribute_value: str
    """Value of the attribute, as text."""
    group_value: str
    """Value of the setting in the first parameter group, as text."""
    trees: Mapping[str, ast.Module]
    """LIVE: the syntax trees of the program, by file."""
    is_default: bool = False
    """Whether the value is one of ``optimizer.defaults``."""


class Detector(BaseDetector):
    """Reports attributes and defaults of optimizers that nothing reads."""

    def on_optimizer_attribute_set(self, event: OptimizerAttributeSet) -> Evidence | None:
        """Return evidence if no file of the program reads the attribute, or sets the value in a parameter group."""
        key, trees = event.attribute, event.trees
        if event.is_default:
            return _changed_default(event)
        nodes = [(file, each) for file, tree in trees.items() for each in _attributes_of_optimizers(tree, key)]
        lines = [SourceLocation(file, each.lineno) for file, each in nodes if isinstance(each.ctx, ast.Store)]
        if not lines or any(_is_read_from_optimizer(each, key) or sets_in_groups(each, key) for each in trees.values()):
            return None
        return Evidence(
            message=f"`optimizer.{key} = {event.attribute_value}` has no effect: this {event.optimizer.kind} reads "
            f"only its param_groups, in which {key} is {event.group_value}.",
            location=lines[0],
            dedup_key=(event.optimizer.kind, key),
        )


def _changed_default(event: OptimizerAttributeSet) -> Evidence | None:
    """Return evidence of a default that changed after the optimizer got its groups, if no later group can use it."""
    lines: list[SourceLocation] = []
    for file, tree in event.trees.items():
        changes = list(_changes_of_defaults(tree))
        lines += [SourceLocation(file, each.lineno) for each in changes]
        own = {id(inner) for each in changes for inner in walk(each)}
        others = (each for each in nodes_in(tree, ast.Attribute) if id(each) not in own)
        if any(each.attr in ("defaults", "add_param_group", "param_groups") for each in others):
            return None
    if not lines:
        return None
    key = event.attribute
    return Evidence(
        message=f"The new default {key}={event.attribute_value} has no effect: the parameter groups of this "
        f"{event.optimizer.kind} were created before, with {key}={event.group_value}.",
        location=lines[0],
        dedup_key=(event.optimizer.kind, key),
    )


def _changes_of_defaults(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements that change ``optimizer.defaults``, also by a method of the dictionary."""
    for each in nodes_in(tree, ast.Assign, ast.AugAssign, ast.Expr):
        match each:
            case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
                changed_node = target.value if isinstance(target, ast.Subscript) else target
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="update" | "setdefault", value=value))):
                changed_node = value
            case _:
                continue
        if isinstance(changed_node, ast.Attribute) and changed_node.attr == "defaults":
            yield each


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each assignment of a setting, or of a variable with the learning rate, that has no effect on a group."""
    yield from changed_variables(source)
    yield from first_groups(source)
    yield from unused_rates(source)
    yield from unknown_keys(source)
    yield from _ignored_settings(source)
    yield from _updated_defaults(source)


def _updated_defaults(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``optimizer.defaults.update(...)`` of an optimizer of PyTorch that gets no group later."""
    changes = [each for each in _changes_of_defaults(source.tree) if isinstance(each, ast.Expr)]
    own = {id(inner) for each in changes for inner in walk(each)}
    attributes = [each.attr for each in source.nodes_of(ast.Attribute) if id(each) not in own] if changes else []
    if {"defaults", "add_param_group", "param_groups"}.intersection(attributes):
        return
    for each in changes:
        call: Any = each.value
        owner = call.func.value.value
        created = assigned_value(source, each, owner.id) if isinstance(owner, ast.Name) else None
        name = source.qualified_name(created.func) if isinstance(created, ast.Call) else ""
        if (name or "").startswith("torch.optim."):
            yield Hit(message=f"`{source.text.segment(call)}` has no effect: {REASONS['defaults']}.", node=call)


def _ignored_settings(source: SourceFile) -> Iterator[Hit]:
    """Yield each assignment of a setting that the optimizer or the scheduler never reads."""
    assignments: dict[int, tuple[Op, str]] = {}
    for each in source.ops(OpKind.SET_ATTRIBUTE, OpKind.STORE_ITEM):
        reason = _target_kind(each)
        earlier = assignments.get(id(each.node), (each, reason))
        # a function may also get another kind of object
        assignments[id(each.node)] = (each, reason if earlier[1] == reason else "")
    targets = frozenset(key for key, (_, reason) in assignments.items() if reason)
    for each, reason in (found for key, found in assignments.items() if key in targets):
        key = each.node.attr if isinstance(each.node, ast.Attribute) else each.node.slice.value
        if sets_in_groups(source.tree, key, targets):
            continue
        if isinstance(each.node, ast.Attribute) and _is_read_from_optimizer(source.tree, key):
            continue
        if EXTERNAL in _owner(each).facts and _is_own_class(source):
            continue
        if reason == "defaults" and _reads_defaults(source, targets):
            continue
        is_certain = EXTERNAL not in _owner(each).facts and not _is_passed_on(source, _owner(each))
        if not is_certain and not each.loops:
            continue  # set once: perhaps to be shown by other code
        yield Hit(
            message=f"`{source.text.segment(each.node)}` has no effect: {REASONS[reason]}.",
            node=each.node,
            fix=_set_in_groups(source, each, key),
            severity=None if is_certain else Severity.WARNING,
        )


def _is_passed_on(source: SourceFile, optimizer: AbstractValue) -> bool:
    """Return True if code outside the file gets the optimizer itself, not only its model."""
    return any(
        passed.kind not in (ValueKind.MODEL, ValueKind.PARAMETERS, ValueKind.STATE)
        and (passed.may_alias(optimizer) or passed.covers(optimizer))
        for each in source.ops(OpKind.ESCAPE)
        for passed in each.inputs
    )


def _is_own_class(source: SourceFile) -> bool:
    """Return True if a class of the program clears gradients itself, and so may be the class of an optimizer."""
    return any(each.name == "zero_grad" for each in source.nodes_of(ast.FunctionDef))


REASONS = {
    "attribute": "a PyTorch optimizer reads only its param_groups, not this attribute",
    "schedule": "a PyTorch scheduler sets the param_groups of the optimizer and does not read this attribute",
    "defaults": "the defaults are used only for parameter groups that are added later",
    "state": "state_dict() returns copies of the parameter groups, and this copy is discarded",
}


def _is_read_from_optimizer(tree: ast.AST, name: str) -> bool:
    """Return True if source code may read an attribute of an optimizer, also by its name as a string.

    Objects with attributes that no optimizer has, such as ``args`` with ``args.epochs``, are excluded, and ``self``.
    """
    if any(isinstance(each.ctx, ast.Load) for each in _attributes_of_optimizers(tree, name)):
        return True
    calls = (each for each in nodes_in(tree, ast.Call))
    named = (each for each in calls if dotted_name(each.func).rpartition(".")[2] in _BY_NAME)
    return any(isinstance(arg, ast.Constant) and arg.value == name for each in named for arg in each.args)


def _attributes_of_optimizers(tree: ast.AST, name: str) -> list[ast.Attribute]:
    attributes = list(nodes_in(tree, ast.Attribute))
    others = {dotted_name(each.value) for each in attributes if each.attr not in _OPTIMIZER_ATTRIBUTES} - {""} | {
        "self"
    }
    return [each for each in attributes if each.attr == name and dotted_name(each.value) not in others]


def _target_kind(assignment: Op) -> str:
    """Return the key of `REASONS` for an assignment that has no effect; "" if it has or may have an effect."""
    target, owner = assignment.node, _owner(assignment)
    if not _is_from_pytorch(owner):
        return ""
    if assignment.kind is OpKind.SET_ATTRIBUTE:
        is_setting = isinstance(target, ast.Attribute) and target.attr in (
            SETTINGS if owner.kind is ValueKind.OPTIMIZER else ("lr",)
        )
        return ("attribute" if owner.kind is ValueKind.OPTIMIZER else "schedule") if is_setting else ""
    if (
        not isinstance(target, ast.Subscript)
        or not isinstance(target.slice, ast.Constant)
        or target.slice.value not in SETTINGS
    ):
        return ""
    if isinstance(target.value, ast.Attribute):
        return "defaults" if target.value.attr == "defaults" else ""
    return "state" if _is_discarded(assignment, target) else ""


def _owner(assignment: Op) -> AbstractValue:
    """Return the optimizer or the scheduler that an assignment changes."""
    subject = assignment.subject
    if assignment.kind is OpKind.SET_ATTRIBUTE:
        return subject
    for each in subject.ancestors(limit=8):
        if each.kind is ValueKind.STATE or (
            each.sources and each.sources[0].kind is ValueKind.OPTIMIZER and each is subject
        ):
            return each.sources[0]
    return subject


def _is_from_pytorch(owner: AbstractValue) -> bool:
    alternatives = list(owner.alternatives())
    package = {ValueKind.OPTIMIZER: "torch.optim", ValueKind.SCHEDULER: "torch.optim.lr_scheduler"}.get(owner.kind)
    is_plain = package is not None and MANAGED not in owner.facts
    if is_plain and EXTERNAL in owner.facts and owner.kind is ValueKind.OPTIMIZER:
        return True  # an argument that is cleared and stepped
    return is_plain and all(each.name.rpartition(".")[0] == package for each in alternatives)


def _is_discarded(assignment: Op, target: ast.Subscript) -> bool:
    """Return True if an item is set directly in the result of ``state_dict()``."""
    calls = [each.node for each in assignment.subject.ancestors(limit=8) if each.kind is ValueKind.STATE]
    if any(is_inside(each, target) for each in calls):
        return True
    group = target.value
    if not isinstance(group, ast.Name) or not assignment.loops:
        return False
    loop = assignment.loops[-1].node
    if not isinstance(loop, ast.For) or not any(is_inside(each, loop.iter) for each in calls):
        return False
    items = {id(each.value) for each in nodes_in(loop, ast.Subscript)}
    loads = [each for each in nodes_in(loop, ast.Name) if isinstance(each.ctx, ast.Load)]
    return all(id(each) in items for each in loads if each.id == group.id)


def _reads_defaults(source: SourceFile, targets: frozenset[int]) -> bool:
    """Return True if the defaults may be used, for a new group or another optimizer."""
    statements = list(source.nodes_of(ast.Assign, ast.AugAssign))
    own_statements = [
        s for s in statements if any(id(t) in targets for t in getattr(s, "targets", [getattr(s, "target", None)]))
    ]
    own_nodes = {id(each) for statement in own_statements for each in walk(statement)}
    attributes = (each for each in source.nodes_of(ast.Attribute) if id(each) not in own_nodes)
    return any(each.attr in ("defaults", "add_param_group", "param_groups") for each in attributes)


def _set_in_groups(source: SourceFile, assignment: Op, key: str) -> Fix | None:
    """Return the fix that makes the same assignment in every group."""
    statement, target = assignment.statement, assignment.node
    of_optimizer = _owner(assignment).kind is ValueKind.OPTIMIZER and not isinstance(statement, ast.AugAssign)
    if not isinstance(statement, ast.Assign) or statement.targets != [target] or not of_optimizer:
        return None
    owner = target.value if isinstance(target, ast.Attribute) else _object_before_state(target.value)
    indent = source.text.indent(statement)
    names = {each.id for each in source.nodes_of(ast.Name)}
    if not dotted_name(owner) or indent is None or statement.lineno != statement.end_lineno or "group" in names:
        return None
    lines = f'for group in {dotted_name(owner)}.param_groups:{source.text.newline}{indent}    group["{key}"] = '
    value = source.text.segment(statement.value)
    return Fix(
        (source.text.replace(statement, lines + value),),
        safe=False,
        description="Set the value in optimizer.param_groups",
    )


def _object_before_state(node: ast.expr) -> ast.expr:
    """Return the object that ``state_dict()`` is called on, or that has the ``defaults``."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call):
        node = node.func
    return node.value if isinstance(node, ast.Attribute) else node


ASSIGNMENTS = (
    *(f".{key}{equals}" for key in sorted(SETTINGS) for equals in (" =", "=")),
    ".defaults[",
    ".defaults.",
    ".state_dict()[",
)
RULE = Rule(required_words=("optim", "|".join((*ASSIGNMENTS, "lr", "rate"))), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(128, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(4):
    optimizer.lr = 0.05 * 0.5**epoch
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="OPT007",
    title="Optimizer setting has no effect",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "optimizer.lr = 0.05 * 0.5**epoch": (
                'for group in optimizer.param_groups:\n        group["lr"] = 0.05 * 0.5**epoch'
            )
        },
    ),
    fix="Set the value in every group of optimizer.param_groups, or use a scheduler.",
    rule=RULE,
    detector=Detector,
)
