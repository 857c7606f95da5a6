"""Evaluation builds autograd graphs that nothing uses.

What you see
    Evaluation needs as much memory as training, may run out of memory, and is slower than necessary.

Why it happens
    ``model.eval()`` changes dropout and BatchNorm layers but does not turn autograd off.

Fix
    Run the evaluation under ``torch.no_grad()``, or under ``torch.inference_mode()`` if training uses no result of it:

        model.eval()
        with torch.no_grad():
            losses = [criterion(model(a), b).item() for a, b in held_out]

When this is fine
    - You need gradients in the evaluation, for saliency maps or adversarial examples.
    - You add up the loss of all batches and call ``backward()`` after the loop.
    - The evaluation is small: the results are the same, and the graph of a batch is freed before the next one.

How it is detected
    In a run, the sanitizer reports a trained model in eval mode that built an autograd graph for every batch of an
    evaluation loader, if no backward pass used any of these graphs. The linter reports a loop over a loader in eval
    mode, outside of ``no_grad``, that uses no gradients. The results are correct but slow, so this is a note. It is a
    warning if the graphs of 8 or more batches were in memory at once, because the outputs or losses were collected;
    this is also reported for batches that no loader returned. For the linter, a list or running total collects graphs
    if it exists longer than one iteration of the loop: not a local variable of a function that the loop calls.

References
    PyTorch documentation "Autograd mechanics", section on locally disabling gradient computation,
    https://docs.pytorch.org/docs/stable/notes/autograd.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.evaluation_loops import no_grad_fix, unused_graphs
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_count
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import ModelCalled, Ref, WatchEnded
from trueloop.tracing.trackers.evaluation_passes import EvaluationPass, EvaluationPassesEnded

MIN_ALIVE = 8  # graphs in memory at once


class Detector(BaseDetector):
    """Checks every evaluation pass for unused graphs."""

    def __init__(self) -> None:
        self._passes = 0
        self._collected: dict[Ref, ModelCalled] = {}
        """Latest call of each model on a batch that no loader returned, while many graphs were in memory."""
        self._reported: set[CodePosition | None] = set()

    def on_model_called(self, event: ModelCalled) -> Evidence | None:
        """Return evidence if the collected graphs of the model were freed without a backward pass."""
        before = self._collected.get(event.model)
        if before is not None and event.eval_graphs_alive < before.eval_graphs_alive:
            return self._collected_evidence(self._collected.pop(event.model))
        is_evaluation = event.all_eval and event.has_graph and event.update and not event.recomputed
        if is_evaluation and event.loader is None and event.eval_graphs_alive >= MIN_ALIVE - 1:
            self._collected[event.model] = event
        return None

    def on_watch_ended(self, event: WatchEnded) -> list[Evidence]:
        """Return evidence for the last evaluations."""
        return [evidence for call in self._collected.values() if (evidence := self._collected_evidence(call))]

    def _collected_evidence(self, call: ModelCalled) -> Evidence | None:
        if call.eval_graphs_used() or call.location in self._reported:
            return None
        self._reported.add(call.location)
        return Evidence(
            message=f"The autograd graphs of {call.eval_graphs_alive + 1} batches that {call.model.name} evaluated in "
            "eval mode were in memory at once, but no backward pass used them.",
            location=call.location,
            severity=Severity.WARNING,
        )

    def on_evaluation_passes_ended(self, event: EvaluationPassesEnded) -> list[Evidence]:
        """Return evidence at the start of the next update or the end of the run."""
        self._passes += len(event.passes)
        return [evidence for eval_pass in event.passes if (evidence := _check(eval_pass)) is not None]

    def inconclusive(self) -> str:
        """Return the reason if there was no evaluation pass."""
        return "" if self._passes else "no evaluation pass over a DataLoader was traced"


def _check(eval_pass: EvaluationPass) -> Evidence | None:
    first = eval_pass.calls[0]
    if len(eval_pass.calls) < 2 or eval_pass.graph_used:
        return None
    if not all(call.has_graph and call.all_eval and not call.previous_graph_used for call in eval_pass.calls):
        return None
    alive = max(call.eval_graphs_alive for call in eval_pass.calls) + 1
    collected = f" The graphs of {alive} batches were in memory at once." if alive >= MIN_ALIVE else ""
    return Evidence(
        message=f"{first.model.name} built autograd graphs for {format_count(eval_pass.batches, 'held-out batch')} in "
        f"eval mode, but no backward pass used them.{collected}",
        location=first.location,
        severity=Severity.WARNING if collected else None,
        first_update=eval_pass.update,
    )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the calls that evaluate a model in eval mode with gradients enabled.

    Of the layers that a method of a module calls, only one.
    """
    reported = set[int]()
    found = [(call, _keeps_graphs(source, call)) for call in unused_graphs(source)]
    for call, kept in sorted(found, key=lambda each: not each[1]):
        is_layer = len(call.subject.with_enclosing_modules()) > 1
        outer = call.calls[len(call.loops[-1].calls) :] if is_layer else ()
        key = id(outer[0] if outer else call)
        if key in reported:
            continue
        reported.add(key)
        yield Hit(
            message=f"`{source.text.segment(call.node.func)}()` builds an autograd graph for every evaluation batch, "
            f"but no backward pass uses it.{' The stored outputs keep all of them in memory.' if kept else ''}",
            node=call.node,
            fix=no_grad_fix(source, call),
            severity=Severity.WARNING if kept else None,
        )


def _keeps_graphs(source: SourceFile, call: Op) -> bool:
    """Return True if the loop around a call collects or adds up outputs or losses with their graphs."""
    return any(
        each.kind is OpKind.STORE_ITEM
        and each.name in ("append", "extend", "insert", "+=")
        and any(part is call.result for value in each.inputs for part in value.autograd_graph())
        and not _is_dropped(source, each, call.loops[-1])
        for each in source.ops_in_loop(call.loops[-1], root=call.entry_point)
    )


def _is_dropped(source: SourceFile, store: Op, loop: Loop) -> bool:
    """Return True if each iteration of a loop has a list or running total of its own, such as a local variable."""
    made_in = [each.loops or () for each in store.subject.alternatives()]
    if all(any(node is loop.node for node in loops) for loops in made_in):
        return True
    target = getattr(store.node, "target", None)
    if not isinstance(target, ast.Name):
        return False
    is_local = len(store.calls) > len(loop.calls) and not any(
        target.id in each.names for each in nodes_in(store.function, ast.Global, ast.Nonlocal)
    )
    return is_local or target.id in source.assigned_in(loop)


RULE = Rule(required_words=("eval(", "DataLoader"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(loop.settings["no_grad"], "The evaluation builds graphs already.", no_grad=True)
    loop.unwrap(Piece.EVALUATION, "with torch.no_grad():")


SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
train = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for inputs, targets in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    {no_grad}losses = [nn.functional.mse_loss(model(a), b).item() for a, b in held_out]
    print(sum(losses) / len(losses))
"""

FAILURE = Failure(
    code="EVL003",
    title="Evaluation runs without torch.no_grad()",
    severity=Severity.NOTE,
    bad=SCRIPT.replace("{no_grad}", ""),
    good=SCRIPT.replace("{no_grad}", "with torch.no_grad():\n        "),
    fix="Run the evaluation under torch.no_grad() or torch.inference_mode().",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
