"""An evaluation within the training loop overwrites the training batch, so the step trains on held-out samples.

What you see
    The validation loss falls as fast as the training loss, and the test score is worse. Some training batches are never
    used.

Why it happens
    Python has one variable per name in a function. ``for x, y in val_loader`` within ``for x, y in train_loader``
    assigns the same ``x`` and ``y``. After the inner loop they are the last validation batch, and the step that follows
    trains on it.

Fix
    Give the evaluated batch other names, or evaluate in a function, which has variables of its own.

        for x, y in train_loader:
            if step % 100 == 0:
                for val_x, val_y in val_loader:
                    ...

When this is fine
    - The evaluation comes after the step, at the end of the loop's body.
    - The inner loop trains itself, on parts of the batch.
    - The batch is drawn again after the evaluation.

How it is detected
    In a run, the sanitizer compares the samples on the CPU that a model is trained on with those of the evaluation
    before. It reports the third step on the last batch of an evaluation of two or more batches, if no training happened
    in between, and the evaluation used a loader to its end, or put the model into eval mode.
    The linter reports a loop over other batches, within a loop with a backward pass, that assigns the batch which this
    loop reads afterwards. A loop that is followed by ``continue`` or ``break`` is not reported.

References
    Python, "The for statement", https://docs.python.org/3/reference/compound_stmts.html#the-for-statement
    torch.utils.data, https://docs.pytorch.org/docs/stable/data.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from trueloop.analysis.queries.batch_loops import LOADER_WORDS, BatchLoop, batch_loops, hand_made_batch_loops
from trueloop.analysis.queries.loop_variables import computing_statement, derived_names, stored_names, trains
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import nodes_in, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardEnded, LoaderExhausted, ModelCalled, Ref, TracingGap
from trueloop.tracing.weak_id_dict import WeakIdDict

if TYPE_CHECKING:
    from torch import Tensor

_MOVES: Final = frozenset(("to", "cuda", "float", "long", "double", "int"))
MIN_BATCHES: Final = 2
MIN_STEPS: Final = 3
MAX_KEPT: Final = 4  # training batches, by which training on all data at once is recognised


@dataclass(slots=True)
class _Model:
    """The latest evaluation of a model, and the steps on its last batch."""

    rows: Tensor | None = None
    """Hashes of the samples of the last batch."""
    location: CodePosition | None = None
    loader: Ref | None = None
    batches: int = 0
    used_to_end: bool = False
    all_eval: bool = True
    trained_at: CodePosition | None = None
    """The call on the same samples that a backward pass may follow; None if there is none."""
    steps: int = 0
    other_steps: int = 0
    trained: list[Tensor] = field(default_factory=list[Any])
    """Hashes of the samples of the first training batches that no evaluation has left."""

    def evaluate(self, event: ModelCalled, rows: Tensor) -> None:
        """Record an evaluated batch."""
        is_same = self.location == event.location and self.batches
        is_new = self.rows is None or not _is_one_of(rows, [self.rows])
        self.batches, self.all_eval = (self.batches + is_new, self.all_eval) if is_same else (1, True)
        self.loader = event.loader or (self.loader if is_same else None)
        self.rows, self.location, self.used_to_end = rows, event.location, False
        self.all_eval &= event.all_eval

    def train(self, rows: Tensor | None) -> None:
        """Record a training batch that no evaluation has left."""
        self.trained_at, self.other_steps = None, self.other_steps + 1
        if rows is not None and len(self.trained) < MAX_KEPT:
            self.trained.append(rows)

    def is_last(self, event: ModelCalled, rows: Tensor) -> bool:
        """Return True for a call on the last batch of the evaluation, which has ended."""
        if self.rows is None or self.batches < MIN_BATCHES or event.loader is not None:
            return False
        has_ended = self.used_to_end or (self.all_eval and event.training and self.other_steps > 0)
        return has_ended and _is_one_of(rows, [self.rows]) and not _is_one_of(rows, self.trained)


def _is_one_of(rows: Tensor, several: Sequence[Tensor]) -> bool:
    import torch

    return any(torch.equal(rows, each) for each in several)


class Detector(BaseDetector):
    """Compares each training batch with the last batch of the evaluation before it."""

    def __init__(self) -> None:
        self._models = WeakIdDict[Ref, _Model]()
        self._judged = False

    def on_model_called(self, event: ModelCalled) -> None:
        """Record an evaluated batch, or recognise it in training."""
        from trueloop.tracing.row_digests import row_digests

        inputs = event.inputs
        if event.recomputed or inputs is None or not inputs.is_cpu or inputs.ndim < 2:
            return
        model = self._models.get(event.model) or self._models.put(event.model, _Model())
        if event.has_graph and not model.batches:
            model.train(row_digests(event) if len(model.trained) < MAX_KEPT else None)
        elif (rows := row_digests(event)) is not None:
            if not event.has_graph:
                model.evaluate(event, rows)
            elif model.is_last(event, rows):
                model.trained_at, model.batches = event.location, 0
            else:
                model.train(rows)
                model.batches = 0

    def on_loader_exhausted(self, event: LoaderExhausted) -> None:
        """Record that an evaluation used its loader to the end."""
        for model in self._models.values():
            if model.loader is event.loader and not event.backwards:
                model.used_to_end = self._judged = True

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Forget the evaluations."""
        for model in self._models.values():
            model.batches = 0

    def on_backward_ended(self, event: BackwardEnded) -> Evidence | None:
        """Count the steps on the last batch of an evaluation; return evidence for the third one."""
        for model in self._models.values():
            trained_at, model.trained_at = model.trained_at, None
            if trained_at is not None:
                model.steps += 1
                if model.steps == MIN_STEPS:
                    return Evidence(
                        message=f"{MIN_STEPS} steps trained on the last batch of an evaluation that came before the "
                        "step: the loop of the evaluation has overwritten the training batch.",
                        location=model.location,
                        related=((trained_at, "trained on the same samples"),),
                    )
        return None

    def inconclusive(self) -> str:
        """Return a reason if nothing was evaluated."""
        return "" if self._judged else "no evaluation used a loader to its end"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loop over other batches in a training loop that assigns variables of the training batch."""
    for loop in (*batch_loops(source), *hand_made_batch_loops(source)):
        around = [] if trains(loop.node) else list(enclosing_nodes(source, loop.node))
        outer = next((each for each in around if isinstance(each, ast.For | ast.While) and trains(each)), None)
        if outer is None or _leaves(source, outer, loop.node):
            continue
        used = _first_use(source, outer, loop)
        if used is not None:
            statement = source.text.segment(computing_statement(source, used) or used)
            yield Hit(
                message=f"This loop over `{ast.unparse(loop.loader)}` assigns `{used.id}` of the training loop around "
                f"it: `{statement}` then uses the last batch of this loop.",
                node=loop.node,
                related=((used, f"reads `{used.id}`"),),
            )


def _first_use(source: SourceFile, outer: ast.For | ast.While, loop: BatchLoop) -> ast.Name | None:
    """Return the first variable that a loop reads for its backward pass after an inner loop has assigned it."""
    inside = {id(each) for each in walk(loop.node)}
    names = [each for each in nodes_in(outer, ast.Name) if id(each) not in inside]
    names.sort(key=lambda each: (each.lineno, each.col_offset))
    own = stored_names(outer.target) if isinstance(outer, ast.For) else set[str]()
    own = own.union(*(stored_names(each) for each in outer.body if isinstance(each, ast.Assign)))
    if any(each.id in own for each in nodes_in(loop.node.iter, ast.Name)):
        return None
    last = max((each.lineno for each in nodes_in(outer, ast.Call) if last_name(each.func) == "backward"), default=0)
    end, arms = loop.node.end_lineno or 0, _other_arms(source, loop.node)
    batch = _batch_of(loop)
    for used in names:
        stored = [each.lineno for each in names if each.id == used.id and isinstance(each.ctx, ast.Store)]
        if isinstance(used.ctx, ast.Store) or used.lineno > last or id(used) in arms:
            continue
        if used.id in own:
            is_replaced = used.id in batch | derived_names(loop) and used.lineno > end
            is_replaced &= not any(end < each < used.lineno for each in stored)
        else:  # data from before the training loop, which each of its iterations reads
            is_replaced = used.id in batch and not stored and _is_assigned_before(outer, loop, used.id)
        if is_replaced and not _reads_itself(loop, used.id) and computing_statement(source, used) is not None:
            return used
    return None


def _batch_of(loop: BatchLoop) -> set[str]:
    """Return the variables that hold parts of the batch of a loop, also those that the loop cuts by hand."""
    found = stored_names(loop.node.target) - {loop.counter, "_"}
    if last_name(getattr(loop.loader, "func", None)) == "range":
        found = set()
    for each in nodes_in(loop.node, ast.Assign):
        calls = {last_name(call.func) for call in nodes_in(each.value, ast.Call)}
        if (
            calls <= _MOVES
            and nodes_in(each.value, ast.Subscript, ast.Name)
            and stored_names(each.targets[0]) <= derived_names(loop)
        ):
            found |= stored_names(each.targets[0])
    return found


def _is_assigned_before(outer: ast.AST, loop: BatchLoop, name: str) -> bool:
    parameters = {each.arg for each in nodes_in(loop.function, ast.arg)}
    stores = (each for each in nodes_in(loop.function, ast.Name) if isinstance(each.ctx, ast.Store) and each.id == name)
    return name in parameters or any(each.lineno < outer.lineno for each in stores)  # type: ignore[attr-defined]


def _reads_itself(loop: BatchLoop, name: str) -> bool:
    """Return True if a loop computes a variable from its earlier value, or tests it: ``total = total + loss``."""
    is_target = name in stored_names(loop.node.target)
    if any(each.id == name for test in nodes_in(loop.node, ast.If) for each in nodes_in(test.test, ast.Name)):
        return True
    return not is_target and any(
        name in stored_names(target) and any(each.id == name for each in nodes_in(assigned.value, ast.Name))
        for assigned in nodes_in(loop.node, ast.Assign)
        for target in assigned.targets
    )


def _leaves(source: SourceFile, outer: ast.AST, node: ast.stmt) -> bool:
    """Return True if the training step is not reached after a loop in the same iteration."""
    around = [node, *(each for each in enclosing_nodes(source, node) if isinstance(each, ast.stmt))]
    for each in around[: around.index(outer)]:  # type: ignore[arg-type]
        block = source.block(each)
        if any(isinstance(e, ast.Continue | ast.Break | ast.Return | ast.Raise) for e in block[block.index(each) :]):
            return True
    return False


def _other_arms(source: SourceFile, node: ast.AST) -> set[int]:
    """Return the nodes that only run if a node does not."""
    found: set[int] = set()
    child = node
    for each in enclosing_nodes(source, node):
        if isinstance(each, ast.If) and child in each.body:
            found |= {id(part) for other in each.orelse for part in walk(other)}
        child = each
    return found


RULE = Rule(required_words=("backward", f"{LOADER_WORDS}|split(|chunk(|range(", "for "), find=find)

BAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(200, 8)
y = x.sum(1, keepdim=True)
train_loader = DataLoader(TensorDataset(x[:160], y[:160]), batch_size=16, shuffle=True)
val_loader = DataLoader(TensorDataset(x[160:], y[160:]), batch_size=10)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for step, (inputs, targets) in enumerate(train_loader):
        if step % 4 == 0:
            model.eval()
            with torch.no_grad():
                error = 0.0
                for inputs, targets in val_loader:
                    error += nn.functional.mse_loss(model(inputs), targets, reduction="sum").item()
            print(epoch, step, error / 40)
        model.train()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""

FAILURE = Failure(
    code="DAT043",
    title="An evaluation overwrites the training batch",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(
        BAD,
        {
            "for inputs, targets in val_loader": "for val_inputs, val_targets in val_loader",
            "mse_loss(model(inputs), targets, reduction": "mse_loss(model(val_inputs), val_targets, reduction",
        },
    ),
    fix="Give the batch of the evaluation other names, or evaluate in a function of its own.",
    rule=RULE,
    detector=Detector,
)
