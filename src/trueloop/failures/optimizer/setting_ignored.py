"""A setting of an optimizer is written to where the optimizer does not read it.

What you see
    The learning rate that the program thinks it uses, and may log, is not the one it trains with: a decay, a warm-up or
    another weight decay never happens, and the results do not depend on it.

Why it happens
    torch reads ``optimizer.param_groups`` only. ``optimizer.lr = 1e-4`` makes a new attribute, which Python allows of
    any object; ``optimizer.defaults["lr"]`` is for groups that are added later; ``optimizer.state_dict()`` returns
    copies of the groups, so what is written into them is thrown away. In other libraries the first of these works.

Fix
    ``for group in optimizer.param_groups: group["lr"] = 1e-4``, or a schedule.

When this is fine
    ``group["lr"]`` for the groups in ``optimizer.param_groups``; an optimizer of the program's own, or of another
    library, with an attribute of that name; a state that is changed and loaded back; defaults for groups that
    ``add_param_group`` makes, or for another optimizer built from them; a note that the program reads back or writes to
    the groups itself. It is named where the text shows that the optimizer is torch's, and nothing in the file may read
    the attribute of an optimizer, nor sets that item in a group; a running program where an attribute differs from what
    the groups have while the optimizer steps on, at two starts of a loader, and none of its files does either.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    V2AI/Det3D#109: "self.optimizer.lr = lrs[-1] will not change lr used in optimizer",
    https://github.com/V2AI/Det3D/issues/109
    pytorch/examples#64, "Adjusting learning rate": it was written into ``optimizer.state_dict()['param_groups']``,
    https://github.com/pytorch/examples/issues/64
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.abstract_value import MANAGED, AbstractValue, Kind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.loops import stands_in
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, dotted
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.tracing.events import Event, SettingIgnored
from trueloop.tracing.program_text.optimizer_settings import KEYS, read_of_optimizer, sets_in_groups


class Detector(failure.Detector):
    """Hears of attributes of optimizers that nothing reads."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (SettingIgnored,)

    def observe(self, event: SettingIgnored) -> Evidence:
        """Return evidence for each of them."""
        return Evidence(
            message=f"The attribute {event.key} = {event.value} of this {event.optimizer.kind} is read by nothing: it "
            f"steps on with {event.used}, which its param_groups have.",
            location=event.written,
            about=(event.optimizer.kind, event.key),
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield each assignment of a setting that the optimizer, or the schedule, surely never reads."""
    written: dict[int, tuple[Op, str]] = {}
    for each in source.acts(OpKind.BOUND, OpKind.KEPT):
        word = _word(each)
        before = written.get(id(each.node), (each, word))
        written[id(each.node)] = each, word if before[1] == word else ""  # a function may be given something else, too
    targets = frozenset(key for key, (_, word) in written.items() if word)
    for each, word in (found for key, found in written.items() if key in targets):
        key = each.node.attr if isinstance(each.node, ast.Attribute) else each.node.slice.value
        if sets_in_groups(source.tree, key, targets) or source.handed_out(_owner(each), source.operations):
            continue
        if isinstance(each.node, ast.Attribute) and read_of_optimizer(source.tree, key):
            continue
        if word == "defaults" and _defaults_read(source, targets):
            continue
        yield Hit(message=MESSAGES[word].format(key=key), node=each.node, fix=_in_groups(source, each, key))


MESSAGES = {
    "attribute": "No optimizer of torch's reads this attribute: {key} stays what it is in optimizer.param_groups.",
    "schedule": "No schedule of torch's reads this attribute: {key} stays what it is in optimizer.param_groups.",
    "defaults": "The defaults are for groups that are added later: {key} stays what it is in optimizer.param_groups.",
    "state": "state_dict() returns copies of the groups, and this one is thrown away: {key} stays what it is.",
}


def _word(written: Op) -> str:
    """Return how an assignment misses the groups of an optimizer of torch's; "" where it does not, or may not."""
    target, owner = written.node, _owner(written)
    if not _is_torchs(owner):
        return ""
    if written.act is OpKind.BOUND:
        known = isinstance(target, ast.Attribute) and target.attr in (KEYS if owner.kind is Kind.OPTIMIZER else ("lr",))
        return ("attribute" if owner.kind is Kind.OPTIMIZER else "schedule") if known else ""
    if (
        not isinstance(target, ast.Subscript)
        or not isinstance(target.slice, ast.Constant)
        or target.slice.value not in KEYS
    ):
        return ""
    if isinstance(target.value, ast.Attribute):
        return "defaults" if target.value.attr == "defaults" else ""
    return "state" if _thrown_away(written, target) else ""


def _owner(written: Op) -> AbstractValue:
    """Return the optimizer or the schedule that an assignment is about, as far as it shows."""
    subject = written.subject
    if written.act is OpKind.BOUND:
        return subject
    for each in subject.lineage(limit=8):
        if each.kind is Kind.STATE or (each.of and each.of[0].kind is Kind.OPTIMIZER and each is subject):
            return each.of[0]
    return subject


def _is_torchs(owner: AbstractValue) -> bool:
    ways = list(owner.alternatives())
    package = {Kind.OPTIMIZER: "torch.optim", Kind.SCHEDULER: "torch.optim.lr_scheduler"}.get(owner.kind)
    plain = package is not None and MANAGED not in owner.facts
    return plain and all(each.name.rpartition(".")[0] == package for each in ways)


def _thrown_away(written: Op, target: ast.Subscript) -> bool:
    """Return True where an item is set in what ``state_dict()`` returns there and then."""
    calls = [each.node for each in written.subject.lineage(limit=8) if each.kind is Kind.STATE]
    if any(stands_in(each, target) for each in calls):
        return True
    group = target.value
    if not isinstance(group, ast.Name) or not written.loops:
        return False
    loop = written.loops[-1].node
    if not isinstance(loop, ast.For) or not any(stands_in(each, loop.iter) for each in calls):
        return False
    items = {id(each.value) for each in ast.walk(loop) if isinstance(each, ast.Subscript)}
    loads = [each for each in ast.walk(loop) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
    return all(id(each) in items for each in loads if each.id == group.id)


def _defaults_read(source: Source, targets: frozenset[int]) -> bool:
    """Return True where anything may be made from the defaults: a group, or another optimizer."""
    statements = [each for each in source.nodes if isinstance(each, ast.Assign | ast.AugAssign)]
    mine = [s for s in statements if any(id(t) in targets for t in getattr(s, "targets", [getattr(s, "target", None)]))]
    within = {id(each) for statement in mine for each in ast.walk(statement)}
    named = (each for each in source.nodes if isinstance(each, ast.Attribute) and id(each) not in within)
    return any(each.attr in ("defaults", "add_param_group", "param_groups") for each in named)


def _in_groups(source: Source, written: Op, key: str) -> Fix | None:
    """Return the fix: the same in all groups."""
    statement, target = written.statement, written.node
    of_optimizer = _owner(written).kind is Kind.OPTIMIZER and not isinstance(statement, ast.AugAssign)
    if not isinstance(statement, ast.Assign) or statement.targets != [target] or not of_optimizer:
        return None
    owner = target.value if isinstance(target, ast.Attribute) else _before_state(target.value)
    indent = source.text.indent(statement)
    names = {each.id for each in source.nodes if isinstance(each, ast.Name)}
    if not dotted(owner) or indent is None or statement.lineno != statement.end_lineno or "group" in names:
        return None
    lines = f'for group in {dotted(owner)}.param_groups:{source.text.newline}{indent}    group["{key}"] = '
    value = source.text.of(statement.value)
    return Fix((source.text.replace(statement, lines + value),), safe=False, words="Set it in the optimizer's groups")


def _before_state(node: ast.expr) -> ast.expr:
    """Return what ``state_dict()`` or ``defaults`` is asked of."""
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call):
        node = node.func
    return node.value if isinstance(node, ast.Attribute) else node


WRITTEN = (*(f".{key}{equals}" for key in sorted(KEYS) for equals in (" =", "=")), ".defaults[", ".state_dict()[")
RULE = Rule(words=("optim", "|".join(WRITTEN)), find=find)

FAILURE = Failure(
    code="OPT007",
    title="A setting is written where the optimizer does not read it",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
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
""",
    good="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(128, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(4):
    for group in optimizer.param_groups:
        group["lr"] = 0.05 * 0.5**epoch
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
""",
    fix="Set it in every group of optimizer.param_groups, or use a schedule.",
    rule=RULE,
    detector=Detector,
)
