"""The length of a scheduler (such as ``T_max``) is counted in updates, but ``scheduler.step()`` runs per micro-batch.

What you see
    With gradient accumulation over K batches (micro-batches) the learning rate falls or rises K times too fast. A
    cosine schedule reaches its end after 1/K of the training, and then the learning rate rises again or stays at 0.

Why it happens
    A scheduler does not know whether one ``step()`` means a batch or an update. If ``scheduler.step()`` is outside the
    condition of ``optimizer.step()``, it runs K times per update.

Fix
    Put ``scheduler.step()`` under the same condition as ``optimizer.step()``.

        if (i + 1) % accumulate == 0:
            optimizer.step()
            scheduler.step()  # inside the condition
            optimizer.zero_grad()

When this is fine
    - The length is counted in micro-batches too, or the schedule has no length.
    - A wrapper such as Accelerate steps the scheduler once per process at each update, and its length counts these
      steps.
    - In a GAN, you update the generator only in some of the iterations.

How it is detected
    In a run, the sanitizer looks for a scheduler that makes one step per backward pass although two or more backward
    passes are accumulated per update. It reports the scheduler in two cases: its length is a multiple of the updates
    per epoch but not of the micro-batches per epoch; or it is past its end although there were far fewer updates than
    its length. The linter reports a scheduler that is stepped outside ``if i % K == 0: optimizer.step()`` although its
    length is divided by K. The length of a ``LambdaLR``, or of a class that sets the learning rate itself, is a number
    by which it divides the number of its steps.

References
    How to adjust learning rate, https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    Gradient accumulation, https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
"""

import ast
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.own_schedules import own_advances
from trueloop.analysis.queries.possible_values import computed_from, origins
from trueloop.analysis.queries.statement_moves import move_after_fix
from trueloop.analysis.queries.step_units import iterations_per_step, schedule_lengths, unit_exponent
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import LoaderStarted, Ref, SchedulerStepped, StepTaken, TracingGap
from trueloop.tracing.trackers.accumulation_windows import AccumulationWindows

ENDING = frozenset({"CosineAnnealingLR", "OneCycleLR", "PolynomialLR", "SequentialLR", "ChainedScheduler"})


@dataclass(slots=True)
class _StepCounts:
    """The steps of one scheduler in each accumulation window."""

    optimizer: Ref
    first: tuple[int, int]
    """Number of steps of the scheduler and of its optimizer when the scheduler was first observed."""
    positions: list[int]
    """Number of backward passes before each scheduler step since the latest optimizer step."""
    windows: int = 0
    """Number of windows with one scheduler step per backward pass."""
    size: int = 0
    """Number of backward passes in the largest window with one scheduler step per backward pass."""
    irregular: bool = False
    """Whether a window had another number of scheduler steps."""
    step_location: CodePosition | None = None


class Detector(BaseDetector):
    """Compares the scheduler steps with the backward passes in each accumulation window."""

    windows: AccumulationWindows

    def __init__(self) -> None:
        self._schedules: weakref.WeakKeyDictionary[Ref, _StepCounts] = weakref.WeakKeyDictionary()
        self._lengths: weakref.WeakKeyDictionary[Ref, int] = weakref.WeakKeyDictionary()
        self._loader: Ref | None = None
        """The loader of the batch at the latest step."""
        self._reported: weakref.WeakSet[Ref] = weakref.WeakSet()

    def on_loader_started(self, event: LoaderStarted) -> None:
        """Record the start of the loader."""
        if event.loader not in self._lengths:
            self._lengths[event.loader] = _count_batches(event)

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard incomplete observations."""
        for counts in self._schedules.values():
            counts.positions.clear()

    def on_step_taken(self, event: StepTaken) -> None:
        """Count the scheduler steps of the window that this step ends, if the start of the window was observed."""
        latest, window = self.windows.latest_backward, self.windows.ended_by(event.optimizer)
        self._loader, start, backwards = latest and latest.loader, window.start, window.backwards
        for counts in self._schedules.values() if self._schedules else ():
            if counts.optimizer is not event.optimizer:
                continue
            positions, counts.positions = counts.positions, []
            if start is None or backwards != event.backward_count - start:
                continue  # some of the backward passes belong to another optimizer
            is_spread = any(start < position < event.backward_count for position in positions)
            if backwards > 1 and len(positions) == backwards and is_spread:
                counts.windows += 1
                counts.size = max(counts.size, backwards)
                counts.step_location = event.location
            elif positions:
                counts.irregular = True

    def on_scheduler_stepped(self, event: SchedulerStepped) -> Evidence | None:
        """Return evidence at a scheduler step."""
        counts = self._schedules.get(event.scheduler)
        if counts is None:
            counts = _StepCounts(event.optimizer, (event.last_epoch, event.optimizer_steps), [])
            self._schedules[event.scheduler] = counts
        if len(counts.positions) < 4096:
            counts.positions.append(event.backward_count)
        is_settled = counts.irregular or event.scheduler in self._reported or event.kind not in ENDING
        if is_settled or counts.windows < 2 or event.planned_steps is None:
            return None
        reason = self._describe_length_in_updates(event.planned_steps, counts.size) or _describe_past_end(event, counts)
        if not reason:
            return None
        self._reported.add(event.scheduler)
        return Evidence(
            message=f"{event.kind} is stepped once per micro-batch, {counts.size} times per update: {reason}.",
            location=event.location,
            related=((counts.step_location, "the update"),) if counts.step_location else (),
            first_update=0,
        )

    def _describe_length_in_updates(self, planned: int, size: int) -> str:
        batches = self._lengths.get(self._loader) if self._loader else None
        if not batches or batches <= size or planned % batches == 0:
            return ""
        for updates in (batches // size, -(-batches // size)):
            if planned % updates == 0 and updates > 1:
                epochs = format_count(planned // updates, "epoch")
                length = f"its length of {planned} steps is {epochs} of {updates} updates each"
                return f"{length}, but it makes {batches} steps per epoch"
        return ""


def _describe_past_end(event: SchedulerStepped, counts: _StepCounts) -> str:
    """Describe a schedule that is past its end while the updates are far from it; return "" for any other."""
    planned, (count, steps) = event.planned_steps or 0, counts.first
    updates = event.optimizer_steps - steps
    if event.last_epoch <= planned + counts.size or updates * 2 > event.last_epoch - count + counts.size:
        return ""
    return f"it is past its end after {planned} steps, although there were only {event.optimizer_steps} updates"


def _count_batches(event: LoaderStarted) -> int:
    from torch.utils.data import IterableDataset

    if isinstance(event.live_loader.dataset, IterableDataset):  # len() would make its loader warn about wrong lengths
        return 0
    try:
        return len(event.live_loader)
    except TypeError:  # the sampler has no length
        return 0


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each scheduler step in every iteration if the length is divided by the K of ``if i % K == 0``."""
    for advance in source.ops(OpKind.SCHEDULER_STEP):
        scheduler = advance.subject
        if (
            not advance.loops
            or not advance.is_unconditional_in(loop := advance.loops[-1])
            or not schedule_lengths(scheduler)
        ):
            continue
        steps = source.ops_in_loop(loop, OpKind.STEP, root=advance.entry_point)
        size = iterations_per_step(steps[0], loop) if steps else None
        is_own = any(
            each.may_alias(steps[0].subject) for each in (*scheduler.sources, *scheduler.arguments.values()) if size
        )
        if size is None or not is_own or any(iterations_per_step(each, loop) is not size for each in steps):
            continue
        if any(unit_exponent(each, size) == -1 for each in schedule_lengths(scheduler)):
            yield Hit(
                message=f"`{source.text.segment(advance.node)}` runs once per micro-batch, but the length of the "
                "schedule is counted in updates.",
                node=advance.node,
                related=((steps[0].node, "the update"),),
                fix=move_after_fix(source, advance, steps[0], "Step the scheduler after the optimizer"),
            )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and the steps of the program's own schedules, which compute the rate from a length."""
    yield from find(source)
    reported = set[int]()
    for advance in own_advances(source):
        operation = advance.operation
        if not operation.loops or not operation.is_unconditional_in(loop := operation.loops[-1]):
            continue
        steps = source.ops_in_loop(loop, OpKind.STEP, root=operation.entry_point)
        sizes = [iterations_per_step(each, loop) for each in steps]
        is_own = any(each.may_alias(step.subject) for each in advance.optimizers for step in steps)
        size = sizes[0] if sizes and is_own and all(each is sizes[0] for each in sizes) else None
        if size is None or not isinstance(size.node, ast.expr) or id(advance.call) in reported:
            continue
        names = {ast.unparse(each) for each in origins(source, size.node)}
        length = next((each for each in advance.lengths if _divisions(source, each, names) > 0), None)
        if length is not None:
            reported.add(id(advance.call))
            yield Hit(
                message=f"`{ast.unparse(advance.call)}` runs once per micro-batch, but the length of the schedule is "
                "counted in updates.",
                node=advance.call,
                related=((steps[0].node, "the update"), (length, "the schedule's length")),
            )


def _divisions(source: SourceFile, length: ast.expr, names: set[str]) -> int:
    """Return how often a length is divided by a number, less how often it is multiplied by it."""
    count = 0
    for each in computed_from(source, length):
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div | ast.FloorDiv):
            count += bool({ast.unparse(e) for e in origins(source, each.right)} & names)
        elif isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult):
            sides = (each.left, each.right)
            count -= sum(bool({ast.unparse(e) for e in origins(source, side)} & names) for side in sides)
    return count


RULE = Rule(required_words=("backward(", ".step(", "%"), find=find_all)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(
        bool(loop.window_condition), "There is no gradient accumulation: each batch is an update.", accumulation=4
    )
    loop.require(loop.settings["schedule"] != "onecycle", "OneCycleLR raises past its end.", schedule="cosine")
    loop.move(Piece.SCHEDULER_STEP, after=Piece.BACKWARD)


BAD = """
import warnings
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
torch.manual_seed(0)
x = torch.randn(240, 6)
loader = DataLoader(TensorDataset(x, x.sum(dim=1, keepdim=True)), batch_size=10, shuffle=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs, accumulate = 2, 4
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader) // accumulate)
for epoch in range(epochs):
    for i, (inputs, targets) in enumerate(loader):
        (nn.functional.mse_loss(model(inputs), targets) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
"""

FAILURE = Failure(
    code="SCH002",
    title="Scheduler is stepped once per micro-batch",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "            optimizer.step()\n": "            optimizer.step()\n            scheduler.step()\n",
            "\n        scheduler.step()\n": "\n",
        },
    ),
    fix="Call scheduler.step() where the optimizer steps, once per update.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
