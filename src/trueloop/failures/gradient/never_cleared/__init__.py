"""``zero_grad()`` is not called between two steps, so ``backward()`` adds to gradients that a step has already used.

What you see
    The loss falls at first, then goes up and down or diverges. The gradient norm grows from update to update.

Why it happens
    ``backward()`` adds the new gradients to ``.grad``, so that several batches can share a step. PyTorch cannot know
    that the gradients in ``.grad`` were already used by a step.

Fix
    Clear the gradients once per update. If there are several optimizers, call ``zero_grad()`` of each.

        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()

When this is fine
    - You accumulate gradients: several backward passes, one step, then ``zero_grad()``.
    - In a GAN, you clear the discriminator's gradients before the discriminator's own backward pass.
    - You clear the gradients after the step, with ``model.zero_grad()``, ``p.grad = None`` or ``p.grad.zero_()``.
    - You scale down the old gradients by hand, pass a closure that clears them to ``step()``, or use SAM.

How it is detected
    In a run, the sanitizer checks for each parameter whether a step used its gradient, a backward pass then added to
    the same unchanged gradient, and another step used the sum. So it also finds a ``zero_grad()`` of the wrong
    optimizer or of only half the model. As a warning, it reports gradients that the loss of one optimizer leaves in the
    parameters of another, as a GAN's generator in the discriminator, or the discriminator in the generator, if they
    were still there in 20 of 24 steps. The linter reports a loop with a backward pass and a step of the same parameters
    that never clears the gradients, also, as a warning, if the optimizer is an argument or an attribute, or if a loop
    steps all optimizers of a list or dictionary of which only some items are cleared. It reports, as a warning, the
    step of a discriminator or critic whose gradients also come from the loss of a generator or actor that is computed
    through it, if nothing in the loop clears them in between. In a Lightning module with manual optimization it reports
    a file that never clears gradients, as a warning, because DeepSpeed clears them by itself. A closure of LBFGS is
    reported if it computes gradients and clears none, since one step calls it several times; in a run, at the second
    such step.

References
    torch.optim.Optimizer.zero_grad, https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html
    PyTorch recipe "Zeroing out gradients",
    https://docs.pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html
"""

import ast
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.modes import may_recreate_model
from trueloop.analysis.queries.uncalled_methods import uncalled
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.gradient.never_cleared.closures import ClosureGradients, uncleared_closures
from trueloop.failures.gradient.never_cleared.critic_gradients import CriticGradients
from trueloop.failures.gradient.never_cleared.leftover_gradients import LeftoverGradients
from trueloop.failures.gradient.never_cleared.lightning import uncleared_steps
from trueloop.failures.gradient.never_cleared.passed_optimizers import (
    steps_of_uncleared_items,
    steps_without_clearing,
)
from trueloop.failures.gradient.never_cleared.players_in_source import steps_with_leftovers
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import (
    BackwardEnded,
    BackwardStarted,
    GradientsCleared,
    ModelCalled,
    Ref,
    StepStarted,
    StepTaken,
    TracingGap,
)
from trueloop.tracing.trackers.gradient_ledger import GradientLedger
from trueloop.tracing.weak_id_dict import WeakIdDict

_FIX_BY_HAND: Final = "Clear each gradient after it was used: `p.grad = None`, or `p.grad.zero_()`."


class Detector(BaseDetector):
    """Reports each step whose gradients contain values that an earlier step has used."""

    gradients: GradientLedger

    def __init__(self) -> None:
        self._first_norms = WeakIdDict[Ref, float | None]()
        """The gradient norm of each optimizer's first step."""
        self._leftover = LeftoverGradients()
        self._critic = CriticGradients()
        self._closures = ClosureGradients()

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Forget the gradients of other losses."""
        self._leftover.on_gap()
        self._critic.on_gap()

    def on_model_called(self, event: ModelCalled) -> None:
        """Record the order of the models."""
        self._leftover.on_model_called(event)
        self._critic.on_model_called(event)

    def on_backward_started(self, event: BackwardStarted) -> None:
        """Look for gradients of other losses."""
        self._leftover.on_backward_started(event)
        self._critic.on_backward_started(event)
        self._closures.on_backward_started(event)

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the backward pass."""
        self._leftover.on_backward_ended(event)
        self._critic.on_backward_ended(event)
        self._closures.on_backward_ended(event)

    def on_step_started(self, event: StepStarted) -> None:
        """Look at the closure of LBFGS."""
        self._closures.on_step_started(event)

    def on_gradients_cleared(self, event: GradientsCleared) -> Evidence | None:
        """Forget the cleared gradients; return evidence if a step has used those of a critic's loss."""
        self._leftover.on_gradients_cleared(event)
        self._closures.on_gradients_cleared()
        return self._critic.on_gradients_cleared(event)

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence if a step uses a gradient for the second time, or that of another loss."""
        leftover = self._leftover.on_step_taken(event)
        self._critic.on_step_taken(event)
        in_closure = self._closures.on_step_taken(event)
        return self._find_reused(event) or in_closure or leftover

    def _find_reused(self, event: StepTaken) -> Evidence | None:
        reused = self.gradients.reused_by(event.optimizer)
        if reused is None:
            if not self._first_norms.get(event.optimizer):
                self._first_norms.put(event.optimizer, event.grad_norm)
            return None
        count, total = len(reused.parameters), len(event.with_gradient)
        used = f"all {total} gradients" if count == total else f"{count} of {total} gradients"
        first, growth = self._first_norms.get(event.optimizer), ""
        if first and event.grad_norm and event.grad_norm > 1.05 * first:
            growth = f" Their norm grew from {first:.3g} to {event.grad_norm:.3g}."
        some = ", ".join(sorted(ref.name for ref in reused.parameters)[:3])
        names = "" if count == total else f" Among them: {some}."
        clearing = "nothing cleared" if event.hand_written else "`zero_grad()` did not clear"
        return Evidence(
            message=f"{event.call} used {used} from an earlier step again: {clearing} them, and `backward()` "
            f"added new gradients to them.{growth}{names}",
            location=event.location,
            fix=_FIX_BY_HAND if event.hand_written else "",
            related=((reused.location, "`backward()` added to used gradients here"),) if reused.location else (),
        )


_FIX_LABEL: Final = "Clear the gradients after the step"
STEP_HOOKS: Final = frozenset(("register_step_pre_hook", "register_step_post_hook"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the steps in a loop with a backward pass for their parameters and no call that clears the gradients."""
    for step in source.ops(OpKind.STEP):
        optimizer, loops = step.subject, [each for each in step.loops if not each.runs_at_most_once()]
        if optimizer.kind is not ValueKind.OPTIMIZER or not loops:
            continue
        inside = source.ops_in_loop(loops[-1], root=step.entry_point)
        backward = next(
            (each for each in inside if each.kind is OpKind.BACKWARD and source.reaches(each, optimizer)), None
        )
        is_cleared = any(source.may_clear(each, optimizer) for each in inside)
        if (
            backward is None
            or is_cleared
            or _may_be_recreated(optimizer, loops[-1], inside)
            or _has_step_hooks(source, step)
        ):
            continue
        if source.escapes(optimizer, inside):
            continue
        yield Hit(
            message=f"`{ast.unparse(step.node)}` uses gradients from earlier iterations: the loop never calls "
            "`zero_grad()`.",
            node=step.node,
            related=((backward.node, "adds to the existing gradients"),),
            fix=_clear_after_step(source, step),
        )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, ``zero_grad`` without a call, and Lightning modules that never clear gradients."""
    found = list(find(source))
    yield from found
    for step, backward in uncleared_closures(source):
        if all(each.node is not step.node for each in found):
            yield Hit(
                message=f"`{ast.unparse(step.node)}` calls its closure several times, but the closure never clears the "
                "gradients, so those of all calls add up.",
                node=step.node,
                related=((backward.node, "adds to the existing gradients"),),
            )
    for passed, backward in steps_without_clearing(source):
        yield Hit(
            message=f"`{ast.unparse(passed)}` uses the gradients of all earlier iterations: nothing in this program "
            "clears them.",
            node=passed,
            related=((backward, "adds to the existing gradients"),),
            severity=Severity.WARNING,
        )
    for item, cleared in steps_of_uncleared_items(source):
        yield Hit(
            message=f"`{ast.unparse(item)}` steps all optimizers, but only `{ast.unparse(cleared)}` clears gradients: "
            "those of the others add up.",
            node=item,
            related=((cleared, "clears one of them"),),
            severity=Severity.WARNING,
        )
    for left in steps_with_leftovers(source):
        yield Hit(
            message=f"`{ast.unparse(left.step.node)}` also uses the gradients of a loss with which another optimizer "
            "has stepped: nothing clears them before the backward pass of its own loss.",
            node=left.step.node,
            related=((left.backward.node, "this loss leaves gradients behind"),),
            severity=Severity.WARNING,
        )
    consequence = "the gradients of all iterations add up"
    yield from uncalled(source, "zero_grad", consequence, "step", "", "parameters", "load_state_dict")
    for step, statement, backward in uncleared_steps(source):
        line = f"{source.text.segment(step.func.value)}.zero_grad()" if isinstance(step.func, ast.Attribute) else ""
        edit = source.text.insert_after(statement, line) if statement and line else None
        yield Hit(
            message=f"`{ast.unparse(step)}` uses gradients from earlier calls of `training_step`: nothing in this "
            "file clears them.",
            node=step,
            related=((backward, "adds to the existing gradients"),),
            fix=Fix((edit,), safe=True, description=_FIX_LABEL) if edit else None,
            severity=Severity.WARNING,
        )


def _may_be_recreated(optimizer: AbstractValue, loop: Loop, inside: list[Op]) -> bool:
    """Return True if each iteration of a loop may create its own optimizer, or its own parameters."""
    if not optimizer.models():
        created = any(each.kind is OpKind.CREATE and each.subject.may_alias(optimizer) for each in inside)
    else:
        created = any(may_recreate_model(loop, each, inside) for each in optimizer.models())
    return created or any(each.may_alias(optimizer) or each.covers(optimizer) for each in _iterated_values(loop))


def _iterated_values(loop: Loop) -> list[AbstractValue]:
    """Return the values that a loop iterates over, including those in nested lists, such as pairs of models."""
    values = [] if loop.iterable is None else [loop.iterable]
    for each in values:
        if each.kind in (ValueKind.SEQUENCE, ValueKind.UNKNOWN):
            values += [inner for inner in (*each.sources, *each.union) if inner not in values]
    return values


def _has_step_hooks(source: SourceFile, step: Op) -> bool:
    """Return True if the program registers hooks that run with every step."""
    names = {each.func.attr for each in source.all_calls if isinstance(each.func, ast.Attribute)}
    return bool(names & STEP_HOOKS)


def _clear_after_step(source: SourceFile, step: Op) -> Fix | None:
    """Return the fix that clears the gradients after the step."""
    statement = step.statement
    if not isinstance(statement, ast.Expr) or statement.value is not step.node or step.inputs:
        return None
    edit = source.text.insert_after(statement, f"{source.text.segment(step.node.func.value)}.zero_grad()")
    return Fix((edit,), safe=True, description=_FIX_LABEL) if edit else None


RULE = Rule(required_words=("backward(", ".step("), find=find_all)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.leave_out(Piece.ZERO_GRAD)


BAD = """
import torch
from torch import nn

x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    rows = torch.randint(256, (32,))
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
"""

FAILURE = Failure(
    code="GRD001",
    title="Gradients are never cleared",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "loss = nn.functional.mse_loss(model(x[rows]), y[rows])": (
                "optimizer.zero_grad()\n    loss = nn.functional.mse_loss(model(x[rows]), y[rows])"
            )
        },
    ),
    fix="Call optimizer.zero_grad() once per update, before the first backward().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
