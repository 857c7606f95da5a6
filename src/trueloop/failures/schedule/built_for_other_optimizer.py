"""A scheduler is built for an optimizer that has one already, and another optimizer has none.

What you see
    In training with two optimizers, such as a GAN, the learning rate of one falls twice as fast as planned, and that of
    the other one never changes. The balance between both models is lost after some epochs.

Why it happens
    The line was copied, and the name of the optimizer was not changed. A scheduler accepts every optimizer, and several
    schedulers may share one.

Fix
    Give each scheduler its own optimizer.

        scheduler_g = StepLR(optimizer_g, step_size=30)
        scheduler_d = StepLR(optimizer_d, step_size=30)  # not optimizer_g

When this is fine
    - A warm-up and a decay of different classes for one optimizer, while another one keeps its rate.
    - The schedulers are parts of a ``SequentialLR`` or ``ChainedScheduler``.
    - There is only one optimizer.
    - Each scheduler belongs to another phase of the training.

How it is detected
    Only the linter finds it: two schedulers of the same class for the same optimizer, both of them stepped, if another
    optimizer that steps in the program has none. It also reports a scheduler that is built for the same optimizer in
    each iteration of a loop over several optimizers. Classes of which two may follow each other (``LinearLR``,
    ``ConstantLR``, ``PolynomialLR``) are reported only with equal arguments.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
"""

import ast
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from trueloop.analysis.abstract_value import MANAGED, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.failures.failure import Failure, Rule, Severity, changed

MODULE: Final = "torch.optim.lr_scheduler."
COMBINED: Final = frozenset(("LinearLR", "ConstantLR", "PolynomialLR"))
"""Classes of which a warm-up and a decay of the same optimizer may be."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each scheduler that is the second one of its optimizer, while another optimizer has none."""
    creations = [
        each
        for each in source.ops(OpKind.CREATE)
        if each.subject.kind is ValueKind.SCHEDULER and each.subject.name.startswith(MODULE) and _optimizer(each)
    ]
    reported: set[int] = set()
    for first, second in [*combinations(creations, 2), *((each, each) for each in creations)]:
        optimizer = _optimizer(first)
        if id(second.node) in reported or optimizer is None or not _are_twins(first, second):
            continue
        if not all(_is_stepped(source, each) for each in (first, second)):
            continue
        other = _without_scheduler(source, creations, second, optimizer)
        if other is None or (first is second and not _is_built_for_each(first, other.subject)):
            continue
        reported.add(id(second.node))
        related = [(first.node, "the other scheduler of this optimizer")] if first is not second else []
        yield Hit(
            message=f"`{ast.unparse(second.node)}` is the second scheduler of its optimizer, whose learning rate both "
            "change, and another optimizer of the program has none.",
            node=second.node,
            related=(*related, (other.node, "no scheduler changes the rate of this optimizer")),
        )


def _optimizer(creation: Op) -> AbstractValue | None:
    """Return the optimizer of a scheduler; None if it is not certain."""
    sources = creation.subject.sources
    is_known = bool(sources) and sources[0].kind is ValueKind.OPTIMIZER and MANAGED not in sources[0].facts
    return sources[0] if is_known else None


def _are_twins(first: Op, second: Op) -> bool:
    """Return True for two schedulers of one class and one optimizer that exist at the same time."""
    one, two = first.subject, second.subject
    if _optimizer(first) is not _optimizer(second) or one.name != two.name or first.entry_point != second.entry_point:
        return False
    if first is not second and (one is two or first.excludes(second) or first.function is not second.function):
        return False
    if first.statement is not second.statement and _targets(first) == _targets(second):
        return False  # built again for the next phase
    return one.name.rpartition(".")[2] not in COMBINED or ast.unparse(first.node) == ast.unparse(second.node)


def _targets(creation: Op) -> list[str]:
    statement = creation.statement
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [ast.unparse(each) for each in targets if each is not None]


def _is_stepped(source: SourceFile, creation: Op) -> bool:
    return any(
        creation.subject is alternative
        for each in source.ops(OpKind.SCHEDULER_STEP)
        for alternative in each.subject.alternatives()
        if each.index > creation.index
    )


def _is_built_for_each(creation: Op, other: AbstractValue) -> bool:
    """Return True if a loop over several optimizers builds a scheduler, but not for the one of its iteration."""
    iterable = creation.loops[-1].iterable if creation.loops else None
    inside = [] if iterable is None else [*iterable.sources]
    return any(each is other for each in inside) and any(each is _optimizer(creation) for each in inside)


def _without_scheduler(source: SourceFile, schedulers: list[Op], creation: Op, optimizer: AbstractValue) -> Op | None:
    """Return an optimizer that is stepped and that no scheduler may have; None if there is none."""
    held = [part for each in source.ops(OpKind.CREATE) if _is_scheduler(each) for part in each.subject.sources]
    stepped = [each.subject for each in source.ops(OpKind.STEP)]
    for each in source.ops(OpKind.CREATE):
        other = each.subject
        if other.kind is not ValueKind.OPTIMIZER or other is optimizer or each.entry_point != creation.entry_point:
            continue
        if other.may_alias(optimizer) or any(part.may_alias(other) or part.covers(other) for part in held):
            continue
        if each.index < schedulers[-1].index and any(part.may_alias(other) for part in stepped):
            return each
    return None


def _is_scheduler(creation: Op) -> bool:
    return creation.subject.kind is ValueKind.SCHEDULER


RULE: Final = Rule(required_words=("lr_scheduler|LR(", ".step(", "optim"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=0.001)
optimizer_c = torch.optim.Adam(critic.parameters(), lr=0.001)
scheduler_g = torch.optim.lr_scheduler.StepLR(optimizer_g, step_size=5)
scheduler_c = torch.optim.lr_scheduler.StepLR(optimizer_g, step_size=5)
bce = nn.BCEWithLogitsLoss()
for epoch in range(10):
    fake = generator(torch.randn(32, 4))
    optimizer_c.zero_grad()
    real_loss = bce(critic(torch.randn(32, 2) + 1), torch.ones(32, 1))
    (real_loss + bce(critic(fake.detach()), torch.zeros(32, 1))).backward()
    optimizer_c.step()
    optimizer_g.zero_grad()
    bce(critic(fake), torch.ones(32, 1)).backward()
    optimizer_g.step()
    scheduler_g.step()
    scheduler_c.step()
"""

FAILURE = Failure(
    code="SCH012",
    title="Two schedulers for one optimizer, none for the other",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "scheduler_c = torch.optim.lr_scheduler.StepLR(optimizer_g,": (
                "scheduler_c = torch.optim.lr_scheduler.StepLR(optimizer_c,"
            )
        },
    ),
    fix="Pass each scheduler its own optimizer.",
    rule=RULE,
)
