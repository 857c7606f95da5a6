"""With gradient accumulation, the last batches of an epoch get no step: they are discarded or added to the next epoch.

What you see
    The model is never trained on the last few batches of each epoch. Or the first update of the next epoch uses more
    batches than the other updates, and is larger.

Why it happens
    The program steps after every K batches. If the number of batches is not a multiple of K, ``(step + 1) % K == 0`` is
    false for the last batch, and nothing checks the gradients that remain.

Fix
    Step after the last batch too, and divide the losses of the remaining batches by their number instead of K.

        if (step + 1) % K == 0 or step + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()

When this is fine
    - The program makes a step with the remaining batches at the end of the epoch.
    - The counter continues in the next epoch, so that every step uses K batches.
    - The number of batches is a multiple of K.
    - You only measure gradients.

How it is detected
    In a run, the sanitizer looks for an epoch in which two or more steps used K batches each and fewer than K batches
    remained at the end. It reports the epoch if the remaining gradients were then cleared, or if the next step used
    more than K batches. Without a loader it looks for a window that is larger than all others, by less than K batches,
    once in each n updates, three times. It also reports two passes over a loader in which the program loads K batches,
    trains on each of them and steps, several times, and then loads fewer than K batches without using them. The linter
    reports it only if the file contains the number of batches and K, the loop itself counts the batches, and no step
    follows the loop.

References
    PyTorch documentation "CUDA Automatic Mixed Precision examples", section on gradient accumulation,
    https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    Hugging Face Accelerate guide "Performing gradient accumulation" (end of the dataloader),
    https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

import ast
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from trueloop.analysis.abstract_value import MANAGED, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.accumulation_windows import Window, accumulation_window, batch_count
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import CannotInject, TeachingLoop
from trueloop.tracing.events import (
    BackwardEnded,
    BatchLoaded,
    Event,
    GradientsCleared,
    LoaderExhausted,
    ModelCalled,
    Ref,
    StepTaken,
    TracingGap,
)

MIN_EPOCHS: Final = 3  # ends of epochs with as many batches left over
MIN_WINDOWS: Final = 2  # equal windows of a pass whose batches are collected
MAX_WINDOWS: Final = 256


@dataclass(slots=True, kw_only=True, eq=False)
class IncompleteWindow(Event):
    """RARE. A loader ended within an accumulation window, and no step used the gradients accumulated in it alone."""

    batches: int
    """Number of batches in the loader's epoch."""
    leftover_backwards: int
    """Number of backward passes between the latest step and the loader's end."""
    window_backwards: int
    """Number of backward passes in each of the previous windows."""
    next_window_backwards: int
    """Number of backward passes in the next window, including the leftover ones; 0 if their gradients were cleared."""


@dataclass(slots=True)
class _Ahead:
    """A pass over a loader whose batches are collected before they are trained on."""

    loader: Ref
    windows: list[tuple[int, int, int, int]] = field(default_factory=list[tuple[int, int, int, int]])
    """Numbers of batches, of calls with a graph, of backward passes and of steps of each complete window."""
    loaded: int = 0
    calls: int = 0
    backwards: int = 0
    steps: int = 0

    def end(self) -> None:
        """End a window."""
        self.windows = [*self.windows[-MAX_WINDOWS:], (self.loaded, self.calls, self.backwards, self.steps)]
        self.loaded = self.calls = self.backwards = self.steps = 0

    def dropped(self, batches: int) -> tuple[int, int]:
        """Return the size of a window and the number of batches at the end that are not used; zeros if unclear."""
        if len(self.windows) < MIN_WINDOWS or len(set(self.windows)) > 1 or self.calls or self.backwards:
            return 0, 0
        size, calls, backwards, steps = self.windows[0]
        is_accumulation = size > 1 and calls == size and steps and (backwards == size or (backwards == 1 and size > 2))
        left = self.loaded if is_accumulation and size * len(self.windows) + self.loaded == batches else 0
        return (size, left) if 0 < left < size else (0, 0)


@dataclass(slots=True)
class _Windows:
    """The numbers of backward passes between the steps of one optimizer, without the batches of a loader."""

    backwards_at_step: int
    sizes: deque[int] = field(default_factory=lambda: deque[int](maxlen=MAX_WINDOWS + 1))
    cleared: bool = False
    """Whether gradients were cleared since the latest step, after a backward pass."""
    cleared_larger: bool = False
    others_at: int = 0
    """Number of backward passes at the latest step of another optimizer."""
    is_shared: bool = False
    """Whether another optimizer has stepped between the backward passes of a window, as with two players."""
    reported: bool = False
    usual: int = 0
    stride: int = 0

    def end(self, backwards: int) -> int:
        """End a window; return its number of backward passes."""
        self.is_shared |= self.backwards_at_step < self.others_at < backwards
        size, self.backwards_at_step = backwards - self.backwards_at_step, backwards
        if size:
            self.sizes.append(size)
        self.cleared_larger, self.cleared = self.cleared, False
        return size

    def leftover(self) -> int:
        """Return by how much every n-th window, also the latest, is larger than all others; 0 if that is unclear."""
        if len(self.sizes) < MIN_EPOCHS or self.sizes[-1] <= self.sizes[-2]:
            return 0
        self.usual, largest = min(self.sizes), max(self.sizes)
        at = [index for index, size in enumerate(self.sizes) if size == largest]
        strides = {later - earlier for earlier, later in pairwise(at)}
        others = {size for size in self.sizes if size != largest}
        is_regular = len(at) >= MIN_EPOCHS and len(strides) == 1 and others == {self.usual}
        if not is_regular or self.sizes[-1] != largest or not self.usual < largest < 2 * self.usual:
            return 0
        self.stride = strides.pop()
        return largest - self.usual if self.stride > 1 and at[0] <= self.stride else 0


class Detector(BaseDetector):
    """Reports each incomplete window at the end of an epoch, and what happened to its gradients.

    Where no loader tells when an epoch ends, an epoch is recognised by every n-th window, which is larger than the
    others.
    """

    def __init__(self) -> None:
        self._windows: weakref.WeakKeyDictionary[Ref, _Windows] = weakref.WeakKeyDictionary()
        self._reported = False
        """Whether a loader has shown where an epoch ends."""
        self._ahead: _Ahead | None = None
        self._dropped: weakref.WeakKeyDictionary[Ref, tuple[int, int]] = weakref.WeakKeyDictionary()
        """Loader -> window size and number of unused batches at the end of its latest pass."""
        self._ended: Ref | None = None
        """The loader that ended last, until a batch is loaded."""

    def on_batch_loaded(self, event: BatchLoaded) -> None:
        """Count the batch; it ends a window if the batches before it were trained on."""
        self._ended = None
        if event.index == 0:
            self._ahead = _Ahead(event.loader)
        ahead = self._ahead
        if ahead is None or ahead.loader is not event.loader:
            self._ahead = None
            return
        if ahead.backwards:
            ahead.end()
            if ahead.windows[0][0] == 1:  # the usual case
                self._ahead = None
        ahead.loaded += 1

    def on_model_called(self, event: ModelCalled) -> None:
        """Count the call."""
        if self._ahead is not None:
            self._ahead.calls += event.has_graph and event.training

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Count the backward pass; after the end of a pass, it uses the last batches."""
        if self._ahead is not None:
            self._ahead.backwards += 1
        elif self._ended is not None:
            self._dropped.pop(self._ended, None)

    def on_loader_exhausted(self, event: LoaderExhausted) -> Evidence | None:
        """Return evidence if the last batches of a pass, and those of the pass before, were not used.

        The batches of the latest pass may still be used, so they do not count.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.loader is not event.loader:
            return None
        known, now = self._dropped.pop(event.loader, (0, 0)), ahead.dropped(event.batches)
        size, left = now
        if left:
            self._dropped[event.loader], self._ended = now, event.loader
        if known != now or not left or self._reported:
            return None
        self._reported = True
        return Evidence(
            message=f"Of the {event.batches} batches of an epoch, the last {left} had no effect in two epochs: the "
            f"program collects {size} batches for each update and drops an incomplete window.",
            location=event.location,
            fix="Make an update with the batches that are left too, and divide its losses by their number.",
        )

    def on_gradients_cleared(self, event: GradientsCleared) -> None:
        """Record gradients that are cleared before a step used them."""
        for each in self._windows.values():
            each.cleared |= event.backward_count > each.backwards_at_step

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard the windows so far."""
        self._windows.clear()
        self._dropped.clear()
        self._ahead = None

    def on_step_taken(self, event: StepTaken) -> Evidence | None:
        """Return evidence when the same number of backward passes was left over at the end of three epochs."""
        if self._ahead is not None:
            self._ahead.steps += 1
        windows = self._windows.get(event.optimizer)
        if windows is None:
            windows = self._windows[event.optimizer] = _Windows(event.backward_count)
        for other in self._windows.values() if len(self._windows) > 1 else ():
            if other is not windows:
                other.others_at = event.backward_count
        size = windows.end(event.backward_count)
        leftover = windows.leftover() if size and not (windows.reported or windows.is_shared) else 0
        if not leftover or event.closure or self._reported:
            return None
        windows.reported = True
        usual = windows.usual
        text = (
            f"The gradients of {leftover} batches were cleared without a step"
            if windows.cleared_larger
            else f"The gradients of {leftover} batches were added to the next update, which used {usual + leftover} "
            f"batches instead of {usual}"
        )
        return Evidence(
            message=f"{text}, once in every {windows.stride} updates: they are the last ones of an epoch, whose number "
            f"of batches is not a multiple of {usual}.",
            location=event.location,
            fix="Step after the last batch of each epoch too, and divide its losses by the number of batches left.",
        )

    def on_incomplete_window(self, event: IncompleteWindow) -> Evidence:
        """Return the evidence of one incomplete window."""
        self._reported = True
        count = f"{event.leftover_backwards} of {event.batches} batches"
        text = (
            f"The gradients of the last {count} of the epoch were cleared without a step: the model is not trained on "
            "these batches"
            if not event.next_window_backwards
            else f"The gradients of the last {count} of the epoch were added to the first update of the next epoch: it "
            f"used {event.next_window_backwards} batches instead of {event.window_backwards}"
        )
        return Evidence(
            message=f"{text}.",
            location=event.location,
            fix="Step after the last batch too: "
            f"`if (step + 1) % {event.window_backwards} == 0 or step + 1 == len(loader)`.",
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loop over a known number of batches that ends with an incomplete window."""
    for step in source.ops(OpKind.STEP):
        if step.subject.kind is not ValueKind.OPTIMIZER or MANAGED in step.subject.facts or not step.loops:
            continue
        loop = step.loops[-1]
        window = accumulation_window(step, loop)
        counter = _loop_counter(source, loop)
        if window is None or counter is None or not window.is_only_condition or not _only_step(source, step, loop):
            continue
        name, values, size = counter
        leftover = _leftover_batches(window, name, values)
        if leftover:
            yield Hit(
                message=f"No step uses the gradients of the last {leftover} iterations: the loop has {len(values)} "
                f"iterations and steps in every {window.iterations}th.",
                node=loop.node.iter,
                related=((step.node, "the step"),),
                fix=_step_last_window(source, window, name, values, size),
            )


def _only_step(source: SourceFile, step: Op, loop: Loop) -> bool:
    """Return True if each iteration of a loop has a backward pass, and only this step can use its gradients."""
    run = source.ops_of_run(step)
    inside = [each for each in run if each.is_inside(loop)]
    backward = any(
        each.kind is OpKind.BACKWARD and each.is_unconditional_in(loop) and each.same_iteration_as(step)
        for each in inside
    )
    outer = step.loops[-2] if len(step.loops) > 1 else None
    others = [
        each
        for each in run
        if each.kind is OpKind.STEP
        and each is not step
        and (each.index > inside[0].index or (outer is not None and each.is_inside(outer)))
    ]
    is_own = any(
        each.kind is OpKind.CREATE and each.subject is step.subject and each.function is step.function for each in run
    )
    may_leave = bool(nodes_in(loop.node, ast.Break, ast.Return, ast.Continue))
    is_visible = step.entry_point == 0 or is_own  # otherwise the caller may step as well
    return is_visible and backward and not may_leave and not others and not source.escapes(step.subject, run)


def _loop_counter(source: SourceFile, loop: Loop) -> tuple[str, range, str] | None:
    """Return the counter of a loop, its values, and the expression for their number."""
    target, call = getattr(loop.node, "target", None), getattr(loop.node, "iter", None)
    if not isinstance(call, ast.Call) or loop.iterable is None:
        return None
    if isinstance(target, ast.Name) and loop.trip_count() is not None:
        return target.id, range(*(each.constant() for each in loop.iterable.sources)), str(loop.trip_count())
    first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
    iterable = loop.iterable.arguments.get("iterable")
    if source.qualified_name(call.func) != "builtins.enumerate" or not isinstance(first, ast.Name) or iterable is None:
        return None
    start_node: Any = call.args[1] if len(call.args) > 1 else next((each.value for each in call.keywords), None)
    start = 0 if start_node is None else getattr(start_node, "value", None)
    number = batch_count(iterable)
    if number is None or not isinstance(start, int):
        return None
    return first.id, range(start, start + number), f"len({source.text.segment(call.args[0])})"


def _leftover_batches(window: Window, name: str, values: range) -> int:
    """Return the number of iterations after the last complete window; 0 if there are none or it is unknown."""
    counter, ahead, size = window.counter, 0, window.iterations
    if isinstance(counter, ast.BinOp) and isinstance(counter.right, ast.Constant) and isinstance(size, int):
        sign = 1 if isinstance(counter.op, ast.Add) else -1 if isinstance(counter.op, ast.Sub) else 0
        ahead, counter = sign * counter.right.value if isinstance(counter.right.value, int) else 0, counter.left
        if not ahead:
            return 0
    if not isinstance(counter, ast.Name) or counter.id != name or not isinstance(window.remainder, int):
        return 0
    if not isinstance(size, int) or size < 2:
        return 0
    last_ends = [number for number, value in enumerate(values[-size:]) if (value + ahead) % size == window.remainder]
    is_certain = len(values) >= 2 * size and len(last_ends) == 1
    return size - 1 - last_ends[0] if is_certain else 0


def _step_last_window(source: SourceFile, window: Window, name: str, values: range, size: str) -> Fix | None:
    """Return the fix that lets the last iteration end a window too."""
    test = window.branch.node.test
    if window.branch.arm != 0 or not isinstance(test, ast.Compare) or values.step != 1:
        return None
    last = f"{name} + 1" if values.start == 0 else name if values.start == 1 else ""
    edit = source.text.replace(test, f"{source.text.segment(test)} or {last} == {size}") if last else None
    return Fix((edit,), safe=False, description="Step after the last batch too") if edit else None


RULE = Rule(required_words=("backward(", ".step(", "%"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(bool(loop.window_condition), "Nothing is accumulated: there is no window to drop.", accumulation=3)
    window, batches = loop.settings.get("accumulation", 0), loop.settings.get("batches", 0)
    if batches and window and batches % window == 0:  # no window would be incomplete
        other = next((size for size in range(window + 1, batches) if batches % size), 0)
        settings: dict[str, Any] = {"accumulation": other} if other else {}
        raise CannotInject(f"The {batches} batches of an epoch divide evenly into windows of {window}.", **settings)
    loop.window_condition = loop.window_condition.replace(" or number + 1 == len(train_loader)", "")


BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(240, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    optimizer.zero_grad()
    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(model(inputs), targets) / 4
        loss.backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

FAILURE = Failure(
    code="GRD004",
    title="Last accumulation window of an epoch is dropped",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "loss = nn.functional.mse_loss(model(inputs), targets) / 4": (
                "loss = nn.functional.mse_loss(model(inputs), targets) / (4 if step < 12 else 3)"
            ),
            "if (step + 1) % 4 == 0:": "if (step + 1) % 4 == 0 or step + 1 == len(loader):",
        },
    ),
    fix="Make a step with the remaining batches at the end of each epoch too.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
